"""What stands before Gradio: it lets through the requests that the page makes, once they are checked, and no others.

Gradio mounts routes for all that an application may want, about a hundred. The page uses eleven.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covist.page.uploads import Uploads
from covist.request.formats import has_image_ending
from covist.serve.body import read_body
from covist.serve.errors import Refusal
from covist.serve.service import Service

API = "/gradio_api"
OPEN = {"/", "/theme.css", f"{API}/app_id", f"{API}/queue/data", f"{API}/upload_progress"}
OPEN_FOLDERS = ("/assets/", "/static/", f"{API}/heartbeat/")
"""Scripts and styles in Gradio's own package, and the connection by which it sees that a page is open."""
FILE, JOIN, UPLOAD = f"{API}/file=", f"{API}/queue/join", f"{API}/upload"
QUESTION_BYTES = 2**18
ENVELOPE_BYTES = 2**16
"""What surrounds a file in the body of an upload."""
UPLOADS_AT_ONCE = 16
_AS_DATA = {"Content-Security-Policy": "default-src 'none'; sandbox", "X-Content-Type-Options": "nosniff"}
"""A browser must not run what a visitor uploaded."""


class Gate:
    """The mounted application of Gradio, with every request checked.

    forget: told the paths of uploads that were deleted
    """

    def __init__(
        self, app: ASGIApp, path: str, service: Service, uploads: Uploads, forget: Callable[[list[str]], None]
    ):
        self._app, self._path, self._service, self._uploads, self._forget = app, path, service, uploads, forget
        self._uploading = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        path = scope["path"].removeprefix(self._path) or "/"
        self._check_key(request)
        _check_site(request)
        if request.method in ("GET", "HEAD"):
            if path.startswith(FILE):
                await self._send_file(path.removeprefix(FILE))(scope, receive, send)
                return
            if (path in OPEN or path.startswith(OPEN_FOLDERS)) and "deep_link" not in request.query_params:
                await self._app(scope, receive, send)
                return
        elif request.method == "POST" and path in (JOIN, UPLOAD):
            if path == UPLOAD:
                await self._upload(request, send)
            else:
                await self._app(scope, await self._question(request), send)
            return
        raise Refusal(404, "no_route", "the page has no such path")

    async def tidy(self) -> None:
        """Delete uploads that are too old or too many."""
        self._forget(await asyncio.to_thread(self._uploads.tidy))

    def _check_key(self, request: Request) -> None:
        if not self._service.keys.know(_password(request.headers.get("authorization", ""))):
            challenge = {"WWW-Authenticate": 'Basic realm="covist", charset="UTF-8"'}
            message = "no valid API key: give one as the password; the user name does not matter"
            raise Refusal(401, "invalid_api_key", message, headers=challenge)

    def _send_file(self, place: str) -> FileResponse:
        path = self._uploads.find(place)
        kind = mimetypes.guess_type(path.name)[0] if has_image_ending(path.name) else None
        return FileResponse(path, media_type=kind or "application/octet-stream", headers=_AS_DATA)

    async def _upload(self, request: Request, send: Send) -> None:
        """Let Gradio write an upload to the folder, if it is small, arrives in time and few others are on their way."""
        limits, length = self._service.limits, request.headers.get("content-length", "")
        if not length.isdecimal():
            raise Refusal(411, "no_length", "an upload must announce its length")
        if int(length) > limits.image_bytes + ENVELOPE_BYTES:
            raise Refusal(413, "body_too_large", f"the image is larger than {limits.image_bytes:,} bytes")
        if self._uploading >= UPLOADS_AT_ONCE:
            message = f"{UPLOADS_AT_ONCE} uploads are already on their way; try again in a moment"
            raise Refusal(503, "uploads_full", message, headers={"Retry-After": "1"})
        self._uploading += 1
        try:
            await asyncio.wait_for(self._app({**request.scope}, request.receive, send), limits.body_seconds)
        except asyncio.TimeoutError:
            message = f"the image did not arrive within {limits.body_seconds:g} seconds"
            raise Refusal(408, "slow_body", message, headers={"Connection": "close"}) from None
        finally:
            self._uploading -= 1
            await self.tidy()

    async def _question(self, request: Request) -> Receive:
        """The body of a question, after all paths in it were checked: Gradio would also read those in a text field."""
        body = await read_body(request, replace(self._service.limits, body_bytes=QUESTION_BYTES))
        try:
            asked = json.loads(body)
            for place in _paths(asked):
                self._uploads.find(place)
        except (ValueError, RecursionError):
            raise Refusal(400, "invalid_request", "the body is not JSON") from None
        # Written again, so that Gradio cannot read the same bytes differently.
        messages = iter([{"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}])

        async def receive() -> Message:
            return next(messages, None) or await request.receive()

        return receive


def _paths(value: Any) -> Iterator[Any]:
    """Everything in a JSON value that may be the path of a file."""
    if isinstance(value, dict):
        if value.get("path") is not None:
            yield value["path"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _paths(one)


def _password(authorization: str) -> str:
    """The password of HTTP's basic authentication; browsers ask for it and send it with every request of the page."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(encoded.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _check_site(request: Request) -> None:
    """Refuse what another site makes a visitor's browser send, along with the key that it remembers; not its links."""
    site, mode = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode"))
    follows_link = mode == "navigate" and request.method == "GET"
    if site not in (None, "same-origin", "none") and not follows_link:
        raise Refusal(403, "other_site", "only the page itself may ask for this")
