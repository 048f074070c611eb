"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covist import __version__
from covist.request.budgets import ALL_TOKENS
from covist.serve import openapi
from covist.serve.answers import ChatAnswer, sent_event
from covist.serve.body import closing_refusal, read_body
from covist.serve.errors import GONE, Refusal, draining, error_body, unknown_model
from covist.serve.job import ChatJob
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.logs import log
from covist.serve.metrics import Metrics
from covist.serve.presence import Drain, ended, unless, within
from covist.serve.room import Room, RoomClaim
from covist.serve.schema import ChatRequest, parse_chat
from covist.serve.sequence import Event
from covist.serve.streams import PATH as STREAM
from covist.serve.streams import Streams, serve_stream

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"
PATHS = (CHAT, MODELS, "/health", "/ready", "/metrics", openapi.PATH)
FIGURES = "covist.figures"
"""The key in a request's scope for the figures of its line in the log."""


class Answering(Protocol):
    """What the routes need: a `Service` answers in this process, a `Fleet` (covist.cluster) in other processes."""

    limits: Limits
    keys: Keys
    metrics: Metrics
    room: Room
    name: str
    is_draining: bool

    @property
    def streams(self) -> Streams | None: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_healthy(self) -> bool: ...

    async def admit(self, wanted: ChatRequest, deadline: float | None = None) -> tuple[ChatJob, ChatAnswer]: ...

    def close(self) -> None: ...


def create_app(service: Answering, origins: Collection[str] = ()) -> FastAPI:
    """The application of a service; it closes the service when it ends. Scripts from `origins` may read its answers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = openapi.Described(
        title="covist",
        version=__version__,
        docs_url=None,  # these two would load scripts from other hosts
        redoc_url=None,
        openapi_url=openapi.PATH,
        lifespan=lifespan,
    )
    app.state.service, app.state.drain = service, Drain()
    app.state.has_told_of_budget, app.state.origins = False, frozenset(origins)
    app.add_middleware(_OneLength)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client for browsers sends a dozen of its own
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(_Accounts, service=service, drain=app.state.drain)
    app.add_exception_handler(Refusal, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_failure)
    app.add_api_route(CHAT, _chat, methods=["POST"], **openapi.CHAT)
    app.add_api_websocket_route(STREAM, serve_stream)
    app.add_api_route(MODELS, _models, **openapi.MODELS)
    app.add_api_route(MODELS + "/{model:path}", _model, **openapi.MODEL)  # names may contain slashes
    for path, answer, described in (
        ("/health", _health, openapi.HEALTH),
        ("/ready", _ready, openapi.READY),
        ("/metrics", _metrics, openapi.METRICS),
    ):
        app.add_api_route(path, answer, **described)
        app.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)
    return app


# -- routes ------------------------------------------------------------------------------------------------------------


async def _chat(request: Request) -> Response:
    service, drain = _service(request), request.app.state.drain
    service.keys.check(request.headers.get("authorization"))
    if service.is_draining:
        raise draining()
    with RoomClaim(service.room, "bytes of requests") as claim:
        body = await unless(drain.ended(), read_body(request, service.limits, claim))
        begun = await unless(ended(request, drain), _begin(service, body, claim))
    if begun.is_stream:
        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(_stream(request, begun), media_type="text/event-stream", headers=headers)
    answer = await unless(ended(request, drain), _complete(begun))
    _note(request, answer)
    return JSONResponse(answer.completion(), headers={"x-request-id": answer.id})


@dataclass(frozen=True)
class _Begun:
    """A request whose first event has arrived: before a stream begins, a failure can still set the status."""

    job: ChatJob
    answer: ChatAnswer
    first: tuple[int, Event]
    events: AsyncGenerator[tuple[int, Event], None]
    is_stream: bool
    include_usage: bool


async def _begin(service: Answering, body: bytearray, claim: RoomClaim) -> _Begun:
    """Parse and admit a request, and wait for its first event; its body and images are freed before that."""
    deadline = asyncio.get_running_loop().time() + service.limits.request_seconds
    wanted = await within(deadline, asyncio.to_thread(parse_chat, body, service.limits))
    body.clear()
    job, answer = await service.admit(wanted, deadline)
    options = wanted.stream_options
    is_stream, include_usage = bool(wanted.stream), options is not None and options.include_usage
    del wanted
    claim.free()
    events = job.follow()
    return _Begun(job, answer, await anext(events), events, is_stream, include_usage)


async def _complete(begun: _Begun) -> ChatAnswer:
    """The answer when all events have arrived."""
    async with aclosing(begun.events) as events:
        begun.answer.add(*begun.first)
        async for index, event in events:
            begun.answer.add(index, event)
    return begun.answer


async def _models(request: Request) -> dict[str, Any]:
    service = _service(request)
    service.keys.check(request.headers.get("authorization"))
    return {"object": "list", "data": [_described(service)]}


async def _model(request: Request, model: str) -> dict[str, Any]:
    service = _service(request)
    service.keys.check(request.headers.get("authorization"))
    if model != service.name:
        raise unknown_model(model, service.name)
    return _described(service)


def _described(service: Answering) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": int(time()), "owned_by": "covist"}


async def _health(request: Request) -> JSONResponse:
    is_healthy = _service(request).is_healthy
    return JSONResponse({"status": "ok" if is_healthy else "failed"}, 200 if is_healthy else 503)


async def _ready(request: Request) -> JSONResponse:
    service = _service(request)
    status = "draining" if service.is_draining else "ready" if service.is_ready else "failed"
    return JSONResponse({"status": status}, 200 if status == "ready" else 503)


async def _metrics(request: Request) -> Response:
    return Response(_service(request).metrics.text(), media_type="text/plain; version=0.0.4")


# -- streams, and clients that disconnect ------------------------------------------------------------------------------


async def _stream(request: Request, begun: _Begun) -> AsyncIterator[bytes]:
    answer, events = begun.answer, begun.events
    watch = asyncio.create_task(_end(request, begun.job))
    try:
        for chunk in answer.opening():
            yield chunk
        yield answer.event(*begun.first)
        async for index, event in events:
            yield answer.event(index, event)
        _note(request, answer)
        for chunk in answer.closing(begun.include_usage):
            yield chunk
    except Refusal as refusal:
        _service(request).metrics.refused(refusal.reason)
        yield sent_event(refusal.body)
    finally:
        watch.cancel()
        await events.aclose()  # frees its places, even if this stream was cancelled


async def _end(request: Request, job: ChatJob) -> None:
    """End a job as soon as its client disconnects, or the shutdown waits no longer."""
    job.end(await ended(request, request.app.state.drain))


def _service(request: Request) -> Answering:
    return request.app.state.service


def _note(request: Request, answer: ChatAnswer) -> None:
    """Count a complete answer, and store its figures for the log."""
    _service(request).metrics.answered(answer)
    request.scope[FIGURES] |= answer.figures
    if answer.is_within_budget and not request.app.state.has_told_of_budget:  # once: it will be so for many requests
        request.app.state.has_told_of_budget = True
        log(f"not compressed: {ALL_TOKENS}", **answer.figures)


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


class _OneLength:
    """Refuses requests that give two lengths, on every path.

    A proxy in front that believes the other length would take what follows for the next request of someone else.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and {b"content-length", b"transfer-encoding"} <= {
            name for name, _ in scope["headers"]
        }:
            message = "the request has both Content-Length and Transfer-Encoding; send one of them"
            app = await _answer_refusal(Request(scope), closing_refusal(400, "two_lengths", message))
        await app(scope, receive, send)


class _Accounts:
    """Counts and logs every request by path and status, without its content."""

    def __init__(self, app: ASGIApp, service: Answering, drain: Drain):
        self._app, self._service, self._drain = app, service, drain

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

        self._drain.requests += scope["path"] == CHAT
        try:
            await self._app(scope, receive, sending)
        finally:
            self._drain.requests -= scope["path"] == CHAT
            path = next((one for one in PATHS if scope["path"] == one or scope["path"].startswith(f"{one}/")), "other")
            seconds = monotonic() - began
            self._service.metrics.request(path, status, seconds)
            is_asset = path == "other" and status < 400  # a file of the page
            if path not in PATHS[2:] and not is_asset:
                log("request", path=path, status=status, seconds=round(seconds, 4), **scope[FIGURES])
