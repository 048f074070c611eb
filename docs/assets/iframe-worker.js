// Browsers start no workers for pages from a folder (file://). There a hidden frame runs the worker of the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.addEventListener("load", () => this.start(url), { once: true })
      document.body.append(this.frame)
    }

    start(url) {
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = new URL(url, location.href)
      script.addEventListener("load", () => {
        this.deliver = data => inside.dispatchEvent(new MessageEvent("message", { data }))
        this.waiting.forEach(this.deliver)
      })
      inside.document.body.append(script)
    }

    postMessage(data) {
      this.deliver ? this.deliver(data) : this.waiting.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
