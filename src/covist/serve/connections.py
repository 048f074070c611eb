"""Connections: the address to listen on, and a time limit for slow clients."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from covist.errors import CovistError


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, which accepts connections once the server listens; port 0 picks a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise CovistError(
            f"cannot listen on {host}, port {port} ({error.strerror}); choose another --host or --port"
        ) from None
    return bound


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with a time limit: it closes connections whose request headers take longer than `seconds`.

    uvicorn itself waits for ever, so a few thousand idle sockets would block all other clients. The time for a body is
    limited where it is read.
    """

    class TimedProtocol(H11Protocol):
        _closing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop()

        def _watch(self) -> None:
            """Measure the time from the first byte of the headers (or from the connection) to the last."""
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._closing is None:
                self._closing = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return TimedProtocol
