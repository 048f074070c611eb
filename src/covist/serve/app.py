"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covist.serve.answers import Answer, sent_event
from covist.serve.body import GONE, read_body
from covist.serve.errors import Refusal, error_body
from covist.serve.job import Job
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.logs import log
from covist.serve.metrics import Metrics
from covist.serve.schema import ChatRequest, parse_chat
from covist.serve.sequence import Event

PATHS = ("/v1/chat/completions", "/v1/models", "/health", "/ready", "/metrics")
FIGURES = "covist.figures"
"""The key in a request's scope for the figures of its line in the log."""


class Answering(Protocol):
    """What the routes need: a `Service` answers in this process, a `Fleet` (covist.cluster) in other processes."""

    limits: Limits
    keys: Keys
    metrics: Metrics
    name: str

    @property
    def is_ready(self) -> bool: ...

    async def admit(self, wanted: ChatRequest) -> tuple[Job, Answer]: ...

    def close(self) -> None: ...


def create_app(service: Answering) -> FastAPI:
    """The application of a service; it closes the service when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = FastAPI(title="covist", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(_Accounts, service=service)
    app.add_exception_handler(Refusal, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_failure)
    app.add_api_route("/v1/chat/completions", _chat, methods=["POST"])
    app.add_api_route("/v1/models", _models)
    app.add_api_route("/health", _health)
    app.add_api_route("/ready", _ready)
    app.add_api_route("/metrics", _metrics)
    return app


# -- routes ------------------------------------------------------------------------------------------------------------


async def _chat(request: Request) -> Response:
    service = _service(request)
    service.keys.check(request.headers.get("authorization"))
    wanted = parse_chat(await read_body(request, service.limits))
    job, answer = await service.admit(wanted)
    watch = asyncio.create_task(_leave_with_client(request, job))
    events = job.follow()
    try:
        first = await anext(events)  # before a stream begins, a failure can still set the status
        if wanted.stream:
            usage = wanted.stream_options is not None and wanted.stream_options.include_usage
            body = _stream(request, answer, first, events, watch, usage)
            return StreamingResponse(body, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        answer.add(*first)
        async for index, event in events:
            answer.add(index, event)
    except BaseException:
        watch.cancel()
        raise
    watch.cancel()
    _note(request, answer)
    return JSONResponse(answer.completion(), headers={"x-request-id": answer.id})


async def _models(request: Request) -> dict[str, Any]:
    service = _service(request)
    service.keys.check(request.headers.get("authorization"))
    model = {"id": service.name, "object": "model", "created": int(time()), "owned_by": "covist"}
    return {"object": "list", "data": [model]}


async def _health() -> dict[str, str]:
    return {"status": "ok"}


async def _ready(request: Request) -> JSONResponse:
    is_ready = _service(request).is_ready
    return JSONResponse({"status": "ready" if is_ready else "draining"}, 200 if is_ready else 503)


async def _metrics(request: Request) -> Response:
    return Response(_service(request).metrics.text(), media_type="text/plain; version=0.0.4")


# -- streams, and clients that disconnect ------------------------------------------------------------------------------


async def _stream(
    request: Request,
    answer: Answer,
    first: tuple[int, Event],
    events: AsyncIterator[tuple[int, Event]],
    watch: asyncio.Task[None],
    include_usage: bool,
) -> AsyncIterator[bytes]:
    try:
        for chunk in answer.opening():
            yield chunk
        answer.add(*first)
        yield answer.event(*first)
        async for index, event in events:
            answer.add(index, event)
            yield answer.event(index, event)
        _note(request, answer)
        for chunk in answer.closing(include_usage):
            yield chunk
    except Refusal as refusal:
        _service(request).metrics.refused(refusal.reason)
        yield sent_event(refusal.body)
    finally:
        watch.cancel()
        await events.aclose()  # type: ignore[attr-defined]  # frees its places, even if this stream was cancelled


async def _leave_with_client(request: Request, job: Job) -> None:
    """End a job as soon as its client disconnects; the body has been read, so nothing else can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.leave()


def _service(request: Request) -> Answering:
    return request.app.state.service


def _note(request: Request, answer: Answer) -> None:
    """Count a complete answer, and store its figures for the log."""
    _service(request).metrics.answered(answer)
    request.scope[FIGURES] |= answer.figures


# -- errors, and the log of every request ------------------------------------------------------------------------------


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    _service(request).metrics.refused(error.reason)
    request.scope[FIGURES]["reason"] = error.reason
    return JSONResponse(error.body, error.status, headers=error.headers)


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answer unknown paths and methods."""
    assert isinstance(error, HTTPException)
    paths = ", ".join(PATHS)
    message = f"{request.method} {request.url.path}: {error.detail}; the paths are {paths}"
    return JSONResponse(error_body(error.status_code, message, "no_route"), error.status_code, headers=error.headers)


async def _answer_failure(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body(500, "unexpected error in the server", "unexpected"), 500)


class _Accounts:
    """Counts and logs every request by path and status, without its content."""

    def __init__(self, app: ASGIApp, service: Answering):
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = monotonic(), GONE
        scope[FIGURES] = {}

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            seconds = monotonic() - began
            self._service.metrics.request(path, status, seconds)
            is_asset = path == "other" and status < 400  # a file of the page
            if path not in PATHS[2:] and not is_asset:
                log("request", path=path, status=status, seconds=round(seconds, 4), **scope[FIGURES])
