"""The uvicorn server of the application."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import uvicorn
from fastapi import FastAPI

from covist.serve.app import Answering, create_app
from covist.serve.connections import timed_protocol
from covist.serve.logs import write_to_stderr
from covist.serve.presence import Drain
from covist.serve.service import Service

Extension = Callable[[FastAPI, Service], Callable[[], None]]
"""Adds routes to the application; returns a function that closes their connections, which could stay open."""
CLOSING_SECONDS = 5
"""How long connections may take to close once their requests have been answered or ended."""
POLL_SECONDS = 0.05
Kind = TypeVar("Kind", bound=Answering)


def build_server(
    service: Kind, extension: Callable[[FastAPI, Kind], Callable[[], None]] | None = None
) -> uvicorn.Server:
    """A server that is not running yet."""
    limits, app = service.limits, create_app(service)
    close_extension = None if extension is None else extension(app, service)
    config = uvicorn.Config(
        app,
        http=timed_protocol(limits.body_seconds),
        ws="none",
        log_config=None,
        access_log=False,  # our own log has no addresses and no queries
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return _Server(config, service, app.state.drain, close_extension)


def run_server(
    service: Kind, bound: socket.socket, extension: Callable[[FastAPI, Kind], Callable[[], None]] | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; running requests are finished first. The log goes to stderr."""
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal again after draining, when nothing is left to do.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    write_to_stderr()
    build_server(service, extension).run([bound])


class _Server(uvicorn.Server):
    """Lets the requests in progress finish before it closes its port: until then /ready can say that it drains."""

    def __init__(
        self, config: uvicorn.Config, service: Answering, drain: Drain, close_extension: Callable[[], None] | None
    ):
        super().__init__(config)
        self._service, self._drain, self._close_extension = service, drain, close_extension

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.is_draining = True
        if self._close_extension is not None:
            self._close_extension()
        deadline = monotonic() + self._service.limits.drain_seconds
        while self._drain.requests and monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(POLL_SECONDS)
        self._drain.end()
        await super().shutdown(sockets)
