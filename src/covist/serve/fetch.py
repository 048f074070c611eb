"""Images from the web, only from hosts that the operator allows, and never from the operator's own network."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, urlsplit

from covist.serve.errors import Refusal
from covist.serve.limits import Limits

PORT = 443
CHUNK = 65536
_TUNNELS = [ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]
"""IPv6 addresses that carry an IPv4 address, which may be a private one."""


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet.

    >>> is_public("93.184.215.14"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1")
    (True, False, False)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6:
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if any(found in network for network in _TUNNELS):
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


def open_tls(address: str, host: str, seconds: float) -> socket.socket:
    """A connection to `address`, whose certificate must be that of `host`."""
    return ssl.create_default_context().wrap_socket(
        socket.create_connection((address, PORT), timeout=seconds), server_hostname=host
    )


class Fetcher:
    """Fetches from allowed hosts; `resolve` and `connect` can be replaced in tests."""

    def __init__(
        self,
        hosts: Collection[str],
        limits: Limits,
        resolve: Callable[..., Any] = socket.getaddrinfo,
        connect: Callable[[str, str, float], socket.socket] = open_tls,
    ):
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._limits, self._resolve, self._connect = limits, resolve, connect

    def fetch(self, url: str, place: str) -> bytes:
        """The bytes at a URL; `place` names the image in messages."""
        host, path = self._checked(url, place)
        deadline = monotonic() + self._limits.fetch_seconds
        address = self._address(host, place)
        connection = http.client.HTTPSConnection(host, timeout=self._limits.fetch_seconds)
        try:
            # We connect to the address that was checked: a second look-up could return another one.
            connection.sock = self._connect(address, host, self._limits.fetch_seconds)
            connection.request("GET", path, headers={"User-Agent": "covist", "Accept": "image/*"})
            answer = connection.getresponse()
            if answer.status != 200:
                why = "redirects are not followed" if 300 <= answer.status < 400 else f"status {answer.status}"
                raise _refusal(place, f"was not fetched: {why}")
            return self._read(answer, place, deadline)
        except (OSError, http.client.HTTPException):
            raise _refusal(place, "could not be fetched from its host") from None
        finally:
            connection.close()

    def _checked(self, url: str, place: str) -> tuple[str, str]:
        """Host and path of a URL; refuses one that may not be fetched."""
        try:
            parts: SplitResult = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise _refusal(place, "is not a URL") from None
        if parts.scheme not in ("http", "https"):
            raise _refusal(place, "must be a data URL: data:image/png;base64,...")
        if host not in self._hosts:
            raise _refusal(place, "is on a host that this server does not fetch from; send the image as a data URL")
        if parts.scheme != "https" or port not in (None, PORT) or parts.username is not None:
            raise _refusal(place, "must be https, without a port and without a user name")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not path.isascii() or any(letter.isspace() for letter in path):
            raise _refusal(place, "has characters that must be percent-encoded")
        return host, path

    def _address(self, host: str, place: str) -> str:
        try:
            found = [str(entry[4][0]) for entry in self._resolve(host, PORT, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError):
            found = []
        if not found or not all(map(is_public, found)):
            raise _refusal(place, "has a host without a public address")
        return found[0]

    def _read(self, answer: http.client.HTTPResponse, place: str, deadline: float) -> bytes:
        body = bytearray()
        while chunk := answer.read1(CHUNK):
            body += chunk
            if len(body) > self._limits.image_bytes:
                raise _refusal(place, f"is larger than {self._limits.image_bytes:,} bytes")
            if monotonic() > deadline:
                raise _refusal(place, f"did not arrive within {self._limits.fetch_seconds:g} seconds")
        return bytes(body)


def _refusal(place: str, problem: str) -> Refusal:
    return Refusal(400, "bad_image_url", f"{place} {problem}", param=place)
