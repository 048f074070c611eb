// Browsers start no workers for pages from a folder (file://). There a hidden frame runs the worker of the search.
// As with a worker, messages are copies, and they arrive later: neither side is called while it is sending.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.addEventListener("load", () => this.start(url), { once: true })
      document.body.append(this.frame)
    }

    start(url) {
      const inside = this.frame.contentWindow
      inside.postMessage = data => later(data, message => this.onmessage?.(message))
      const script = inside.document.createElement("script")
      script.src = new URL(url, location.href)
      script.addEventListener("load", () => {
        this.deliver = data => later(data, message => inside.onmessage(message))
        this.waiting.forEach(this.deliver)
      })
      inside.document.body.append(script)
    }

    postMessage(data) {
      this.deliver ? this.deliver(data) : this.waiting.push(structuredClone(data))
    }

    terminate() {
      this.frame.remove()
    }
  }

  const later = (data, receive) => {
    const message = new MessageEvent("message", { data: structuredClone(data) })
    setTimeout(() => receive(message))
  }
}
