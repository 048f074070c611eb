"""Connections: the address to listen on, and clients that take for ever to say what they want."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from covist.errors import CovistError


def bind(host: str, port: int) -> socket.socket:
    """A socket that nobody can connect to before the server listens; port 0 takes any that is free."""
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


def impatient(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol for connections that are closed where the head of a request takes longer than `seconds`.

    uvicorn itself waits for ever, so a few thousand idle sockets would keep everybody else out. The time of a body is
    limited where it is read.
    """

    class ImpatientProtocol(H11Protocol):
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
            """Let the time run from the first byte of a head (or from the connection) to its last."""
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._closing is None:
                self._closing = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return ImpatientProtocol
