"""Connections: the address to listen on, their encryption, and a time limit for slow clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from covist.errors import CovistError


@dataclass(frozen=True)
class Tls:
    """The certificate with which the server itself encrypts connections."""

    certificate: Path
    key: Path | None  # None if it is in the file of the certificate

    @classmethod
    def read(cls, certificate: Path | None, key: Path | None) -> Tls | None:
        """Check both files before a model is loaded; None without a certificate."""
        if certificate is None:
            if key is not None:
                raise CovistError("--ssl-keyfile needs --ssl-certfile")
            return None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_refuse_password)
        except (OSError, ValueError) as error:
            files = " and ".join(str(file) for file in (certificate, key) if file is not None)
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise CovistError(f"--ssl-certfile: {files} cannot be used ({reason})") from None
        return cls(certificate, key)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of uvicorn's configuration."""
        return {"ssl_certfile": self.certificate, "ssl_keyfile": self.key}


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; decrypt it first")


def checked_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Origins as browsers send them; refuses what none would send, so that it cannot be overlooked.

    >>> checked_origins(["https://example.com", "*"])
    ('https://example.com', '*')
    """
    for origin in (origins := tuple(origins)):
        parts = urlsplit(origin)
        if origin != "*" and (not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}".lower()):
            raise CovistError(f"--allow-origin {origin}: give https://HOST or https://HOST:PORT without a path, or *")
    return origins


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
