"""The uvicorn server of the application."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection
from time import monotonic
from types import FrameType
from typing import TypeVar

import uvicorn
from fastapi import FastAPI

from covist.serve.app import Answering, create_app
from covist.serve.body import FIELDS
from covist.serve.connections import Tls, timed_protocol
from covist.serve.logs import write_to_stderr
from covist.serve.presence import Drain
from covist.serve.service import Service

Extension = Callable[[FastAPI, Service], Callable[[], None]]
"""Adds routes to the application; returns a function that closes their connections, which could stay open."""
CLOSING_SECONDS = 5
"""How long connections may take to close once their requests have been answered or ended."""
NOTICE_SECONDS = 1.0
"""How long the port stays open after a signal, at least: a balancer must be able to see that /ready says 503."""
POLL_SECONDS = 0.05
INTERRUPTED = 130
"""The exit code of a second Ctrl-C, as shells give it."""
Kind = TypeVar("Kind", bound=Answering)


def build_server(
    service: Kind,
    extension: Callable[[FastAPI, Kind], Callable[[], None]] | None = None,
    *,
    tls: Tls | None = None,
    origins: Collection[str] = (),
) -> uvicorn.Server:
    """A server that is not running yet; scripts of web sites at `origins` may use it."""
    limits, app = service.limits, create_app(service, origins)
    close_extension = None if extension is None else extension(app, service)
    config = uvicorn.Config(
        app,
        http=timed_protocol(limits.body_seconds),
        ws="auto",
        ws_max_size=4 * limits.image_bytes // 3 + FIELDS,  # a frame in base64, and the message around it
        ws_per_message_deflate=False,  # images are compressed, and bombs are not welcome
        log_config=None,
        access_log=False,  # our own log has no addresses and no queries
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=CLOSING_SECONDS,
        **({} if tls is None else tls.options),
    )
    return _Server(config, service, app.state.drain, close_extension)


def run_server(
    service: Kind,
    bound: socket.socket,
    extension: Callable[[FastAPI, Kind], Callable[[], None]] | None = None,
    *,
    tls: Tls | None = None,
    origins: Collection[str] = (),
) -> None:
    """Serve until SIGTERM or Ctrl-C; running requests are finished first. The log goes to stderr."""
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal again after draining, when nothing is left to do.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    write_to_stderr()
    build_server(service, extension, tls=tls, origins=origins).run([bound])


class _Server(uvicorn.Server):
    """Lets the requests in progress finish before it closes its port: until then /ready can say that it drains."""

    def __init__(
        self, config: uvicorn.Config, service: Answering, drain: Drain, close_extension: Callable[[], None] | None
    ):
        super().__init__(config)
        self._service, self._drain, self._close_extension = service, drain, close_extension
        self._notice_until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; a second Ctrl-C ends the process at once, without waiting for threads or a model."""
        if self.should_exit and sig == signal.SIGINT:
            atexit._run_exitfuncs()  # images that visitors of the page have uploaded are deleted
            os._exit(INTERRUPTED)
        self._service.is_draining = True
        self._notice_until = monotonic() + NOTICE_SECONDS
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.is_draining = True
        if self._close_extension is not None:
            self._close_extension()
        deadline = monotonic() + self._service.limits.drain_seconds
        while (self._drain.requests and monotonic() < deadline) or monotonic() < self._notice_until:
            await asyncio.sleep(POLL_SECONDS)
        self._drain.end()
        await super().shutdown(sockets)
