"""A real server in a thread, on a free port, and the official client in front of it."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from time import sleep
from typing import Any

import httpx
import openai
from PIL import Image

from covist.serve.presence import Drain
from covist.serve.server import Extension, build_server
from covist.serve.service import Service

CONCENTRATION = 0.05
HTTP = httpx.Client(timeout=300, limits=httpx.Limits(max_keepalive_connections=0))
"""Made once, because a new one reads all certificates; every request has a connection of its own."""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    service: Service
    port: int
    stop: Callable[[], None]  # as a signal would; it returns at once
    drain: Drain

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cache  # noqa: B019  # building one takes longer than most answers here
    def client(self, key: str = "none") -> Any:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=300)

    def ask(self, content: Any = "is there a square ?", **options: Any) -> Any:
        """One greedy answer."""
        messages = [{"role": "user", "content": content}]
        return self.client().chat.completions.create(**{"model": self.service.name, "messages": messages, **options})

    def post(self, body: Any, **options: Any) -> httpx.Response:
        """A body as it is, past the checks of the client; JSON unless it is bytes."""
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        return HTTP.post(f"{self.url}/v1/chat/completions", **given, **options)


@contextmanager
def serving(service: Service, extension: Extension | None = None, **front: Any) -> Iterator[Running]:
    """The service behind uvicorn, in a thread, for the length of a `with` block; `front` as for `build_server`."""
    server = build_server(service, extension, **front)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            sleep(0.01)

        def stop() -> None:
            server.should_exit = True

        try:
            yield Running(service, listening.getsockname()[1], stop, server._drain)
        finally:
            stop()
            thread.join()
            # A shutdown does not wait for a step that a test holds up.
            wait_until(lambda: not service._workers._threads)


@contextmanager
def posting(server: Running, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A client that has sent its request and does not read the answer; it leaves at the end of the block."""
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + content)
        yield client


def ask_at_once(server: Running, ask: Callable[[Any], Any], requests: list[Any]) -> list[Any]:
    """Answers to requests that all wait before the first batch is made, so that no batch hangs on the clock."""
    queue, before = server.service._queue, metric(server, "covist_batch_size_sum")

    def all_are_there() -> bool:
        return len(queue) + metric(server, "covist_batch_size_sum") - before == len(requests)

    usual, queue._limits = queue._limits, replace(queue._limits, batch_milliseconds=600_000)
    with ThreadPoolExecutor(len(requests)) as clients:
        answers = [clients.submit(ask, request) for request in requests]
        wait_until(lambda: all_are_there() or any(answer.done() for answer in answers))  # done so early: refused
        with queue._changed:
            queue._limits = usual
            queue._changed.notify_all()
        return [answer.result() for answer in answers]


def wait_until(condition: Callable[[], bool]) -> None:
    """Until something that must happen has happened; a test that waits for ever is stopped from outside."""
    while not condition():
        sleep(0.01)


def metric(server: Running, name: str) -> float:
    """A figure of the server's metrics; 0 where there is none yet."""
    lines = server.service.metrics.text().decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(name + " ")), 0.0)


def data_url(image: Image.Image | bytes, kind: str = "png") -> str:
    """An image as clients send it."""
    if isinstance(image, Image.Image):
        file = BytesIO()
        image.save(file, kind)
        image = file.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def shown(image: Image.Image | bytes | str) -> dict[str, Any]:
    """An image part of a message."""
    return {"type": "image_url", "image_url": {"url": image if isinstance(image, str) else data_url(image)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
