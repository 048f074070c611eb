"""Images from the web, only from hosts that the operator allows, and never from the operator's own network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

import h11

from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.room import RoomClaim

PORT = 443
CHUNK = 65536
RESOLVING_THREADS = 4
"""Look-ups of addresses at once: the system's cannot be interrupted, so they have threads of their own."""
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All IPv6 addresses that are assigned to the public internet; `fec0::/10`, for example, is not among them."""
_NOT_PUBLIC = [ipaddress.ip_network(text) for text in ("2001::/32", "2002::/16", "3fff::/20")]
"""IPv6 addresses that carry an IPv4 address, which may be a private one, and those of examples."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet.

    >>> is_public("93.184.215.14"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1"), is_public("fec0::1")
    (True, False, False, False)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6:
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found not in _GLOBAL_UNICAST or any(found in network for network in _NOT_PUBLIC):
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


async def open_tls(address: str, host: str) -> Streams:
    """A connection to `address`, whose certificate must be that of `host`."""
    context = ssl.create_default_context()
    return await asyncio.open_connection(address, PORT, ssl=context, server_hostname=host)


class Fetcher:
    """Fetches from allowed hosts, on the event loop: who waits for a slow host takes no thread.

    `resolve` and `connect` can be replaced in tests.
    """

    def __init__(
        self,
        hosts: Collection[str],
        limits: Limits,
        resolve: Callable[..., Any] = socket.getaddrinfo,
        connect: Callable[[str, str], Awaitable[Streams]] = open_tls,
    ):
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._limits, self._resolve, self._connect = limits, resolve, connect
        self._resolving = ThreadPoolExecutor(RESOLVING_THREADS, "covist-resolve")

    async def fetch(self, url: str, place: str, claim: RoomClaim) -> bytes:
        """The bytes at a URL, which count towards `claim`; `place` names the image in messages."""
        host, path = self._checked(url, place)
        seconds = self._limits.fetch_seconds  # for everything: address, connection, certificate, headers and body
        try:
            return await asyncio.wait_for(self._download(host, path, place, claim), seconds)
        except asyncio.TimeoutError:
            raise _refusal(place, f"did not arrive within {seconds:g} seconds") from None
        except (OSError, h11.RemoteProtocolError):
            raise _refusal(place, "could not be fetched from its host") from None

    def close(self) -> None:
        self._resolving.shutdown(wait=False, cancel_futures=True)

    def _checked(self, url: str, place: str) -> tuple[str, str]:
        """Host and path of a URL; refuses one that may not be fetched."""
        try:
            parts: SplitResult = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise _refusal(place, "is not a URL") from None
        if parts.scheme not in ("http", "https"):
            raise _refusal(place, f"must be a data URL: data:{place.split()[0]}/...;base64,...")
        if host not in self._hosts:
            raise _refusal(place, "is on a host that this server does not fetch from; send it as a data URL")
        if parts.scheme != "https" or port not in (None, PORT) or parts.username is not None:
            raise _refusal(place, "must be https, without a port and without a user name")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not path.isascii() or any(letter.isspace() for letter in path):
            raise _refusal(place, "has characters that must be percent-encoded")
        return host, path

    async def _download(self, host: str, path: str, place: str, claim: RoomClaim) -> bytes:
        address = await self._address(host, place)
        # We connect to the address that was checked: a second look-up could return another one.
        reader, writer = await self._connect(address, host)
        try:
            connection = h11.Connection(h11.CLIENT)
            headers = [
                ("Host", host),
                ("User-Agent", "covist"),
                ("Accept", "image/*, video/*"),
                ("Connection", "close"),
            ]
            asked = connection.send(h11.Request(method="GET", target=path, headers=headers))
            writer.write((asked or b"") + (connection.send(h11.EndOfMessage()) or b""))
            return await self._answer(connection, reader, place, claim)
        finally:
            writer.transport.abort()

    async def _answer(
        self, connection: h11.Connection, reader: asyncio.StreamReader, place: str, claim: RoomClaim
    ) -> bytes:
        body = bytearray()
        while not isinstance(event := connection.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(CHUNK))
            elif isinstance(event, h11.Response) and event.status_code != 200:
                is_redirect = 300 <= event.status_code < 400
                why = "redirects are not followed" if is_redirect else f"status {event.status_code}"
                raise _refusal(place, f"was not fetched: {why}")
            elif isinstance(event, h11.Data):
                claim.grow(len(event.data))
                body += event.data
                if len(body) > self._limits.image_bytes:
                    raise _refusal(place, f"is larger than {self._limits.image_bytes:,} bytes")
        return bytes(body)

    async def _address(self, host: str, place: str) -> str:
        look_up = partial(self._resolve, host, PORT, type=socket.SOCK_STREAM)
        try:
            entries = await asyncio.get_running_loop().run_in_executor(self._resolving, look_up)
        except (OSError, UnicodeError):
            entries = []
        found = [str(entry[4][0]) for entry in entries]
        if not found or not all(map(is_public, found)):
            raise _refusal(place, "has a host without a public address")
        return found[0]


def _refusal(place: str, problem: str) -> Refusal:
    return Refusal(400, "bad_image_url", f"{place} {problem}", param=place)
