"""Somebody who talks to the page without a browser, and may send anything."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

import httpx

API = "/page/gradio_api"
SESSION = "somebody"


class Caller:
    """A client of the page's own protocol."""

    def __init__(self, url: str, key: str | None = None):
        auth = None if key is None else ("anybody", key)
        self.http = httpx.Client(base_url=url, auth=auth, timeout=120, limits=httpx.Limits(max_keepalive_connections=0))

    @cached_property
    def functions(self) -> dict[str, int]:
        """The numbers of the handlers, by name, as the page itself learns them."""
        config = re.search(r"window\.gradio_config = (\{.*?\});?</script>", self.http.get("/page/").text, re.DOTALL)
        assert config is not None
        return {one["api_name"]: one["id"] for one in json.loads(config[1])["dependencies"]}

    def upload(self, data: bytes, name: str = "photo.png") -> httpx.Response:
        return self.http.post(f"{API}/upload", files={"files": (name, data)})

    def join(self, function: str, data: list[Any]) -> httpx.Response:
        asked = {"data": data, "fn_index": self.functions[function], "session_hash": SESSION}
        return self.http.post(f"{API}/queue/join", json=asked)

    def told(self) -> str:
        """Everything that the page says until nothing more is to come."""
        with self.http.stream("GET", f"{API}/queue/data", params={"session_hash": SESSION}) as events:
            lines = []
            for line in events.iter_lines():
                lines.append(line)
                if "process_completed" in line or "close_stream" in line:
                    break
        return "\n".join(lines)

    def ask(self, image: Any, question: Any = "where is the blue square?") -> str:
        """What the page says to a question about an image; the refusal, if it is refused at once."""
        joined = self.join("ask", [image, question, 64, "covist", "fixed", None])
        return self.told() if joined.status_code == 200 else joined.text


def file_of(path: object, **more: Any) -> dict[str, Any]:
    """A file as Gradio's clients name it."""
    return {"path": str(path), "meta": {"_type": "gradio.FileData"}, **more}
