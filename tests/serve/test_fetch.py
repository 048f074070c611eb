"""Images are fetched from named hosts only, and never from inside."""

import asyncio
import socket
import threading

import pytest

from covist.serve.errors import Refusal
from covist.serve.fetch import Fetcher, is_public
from covist.serve.limits import Limits
from covist.serve.room import Room, RoomClaim

PUBLIC = "93.184.215.14"
HOST = "images.example.com"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Host:
    """A name that resolves to some addresses, and what connecting to one of them gives."""

    def __init__(self, *addresses: str, answer: bytes = OK, stays_open: bool = False, **limits):
        self.addresses, self.answer, self.stays_open = addresses, answer, stays_open
        self.connected: list[tuple[str, str]] = []
        self.fetcher = Fetcher([HOST], Limits(**limits), self.resolve, self.connect)
        self.room = Room(10**9)

    def resolve(self, host, port, **options):
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in address], socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]

    async def connect(self, address, host):
        self.connected.append((address, host))
        near, self.far = socket.socketpair()
        self.far.sendall(self.answer)
        if not self.stays_open:
            self.far.shutdown(socket.SHUT_WR)
        return await asyncio.open_connection(sock=near)

    def fetch(self, url=f"https://{HOST}/a.png?size=1"):
        with RoomClaim(self.room, "bytes") as claim:
            return asyncio.run(self.fetcher.fetch(url, "image 1", claim))


def refusal(host: Host, *url: str) -> str:
    with pytest.raises(Refusal) as refused:
        host.fetch(*url)
    assert refused.value.status == 400 and "\n" not in refused.value.message
    return refused.value.message


def test_an_allowed_host_is_asked_at_the_address_that_was_checked():
    host = Host(PUBLIC)
    assert host.fetch() == b"hello"
    assert host.connected == [(PUBLIC, HOST)]
    asked = host.far.recv(4096)
    assert asked.startswith(b"GET /a.png?size=1 HTTP/1.1\r\nHost: images.example.com\r\n")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
        "2002:7f00:1::", "255.255.255.255", "ff02::1", "fec0::1", "feff::1", "3fff::1", "2001:db8::1", "::7f00:1",
        "5f00::1",
    ],
)  # fmt: skip
def test_addresses_inside_are_never_connected_to(address):
    assert not is_public(address)
    host = Host(address)
    assert "public address" in refusal(host)
    assert host.connected == []


def test_one_private_address_among_public_ones_is_enough_to_refuse():
    host = Host(PUBLIC, "127.0.0.1")
    assert "public address" in refusal(host)
    assert host.connected == []


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946", "2a00:1450:4001:800::200e"])
def test_addresses_of_the_internet_are_connected_to(address):
    host = Host(address)
    assert host.fetch() == b"hello" and host.connected == [(address, HOST)]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://images.example.com/a.png", "must be https"),
        ("https://images.example.com:8443/a.png", "without a port"),
        ("https://user:secret@images.example.com/a.png", "without a user name"),
        ("https://other.example.com/a.png", "does not fetch from"),
        ("https://images.example.com.evil.net/a.png", "does not fetch from"),
        ("https://evil.net#images.example.com", "does not fetch from"),
        ("https://127.0.0.1/a.png", "does not fetch from"),
        ("https://images.example.com/a b", "percent-encoded"),
        ("https://images.example.com/a\r\nHost: inside", "percent-encoded"),
        ("https://[broken/a.png", "is not a URL"),
        ("file:///etc/passwd", "must be a data URL"),
        ("ftp://images.example.com/a.png", "must be a data URL"),
        ("/etc/passwd", "must be a data URL"),
        ("", "must be a data URL"),
    ],
)
def test_other_urls_are_refused_before_anybody_is_asked(url, words):
    host = Host(PUBLIC)
    message = refusal(host, url)
    # Line ends are taken out of a URL before it is read, which leaves a harmless path.
    assert words in message
    assert host.connected == []


def test_redirects_are_not_followed():
    host = Host(PUBLIC, answer=b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n")
    assert "redirects are not followed" in refusal(host)
    assert len(host.connected) == 1


def test_errors_of_the_host_are_refused():
    assert "status 404" in refusal(Host(PUBLIC, answer=b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n"))
    assert "could not be fetched" in refusal(Host(PUBLIC, answer=b"nonsense\r\n\r\n"))
    assert "public address" in refusal(Host())


def test_large_files_are_refused_whatever_their_header_says():
    long = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000
    assert "larger than 1,000 bytes" in refusal(Host(PUBLIC, answer=long, image_bytes=1000))


def test_slow_files_are_refused():
    assert "within 0 seconds" in refusal(Host(PUBLIC, fetch_seconds=0))


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nServer: x\r\n", OK[:-1]])
def test_the_time_to_fetch_includes_headers_and_body(begun):
    """The host says something and then nothing more, without closing the connection."""
    host = Host(PUBLIC, answer=begun, stays_open=True, fetch_seconds=0.1)
    assert "within 0.1 seconds" in refusal(host)
    host.far.settimeout(60)
    while host.far.recv(4096):
        pass  # the request; after it the connection is closed


def test_the_time_to_fetch_includes_the_connection_and_its_certificate():
    host = Host(PUBLIC, fetch_seconds=0.1)
    host.fetcher._connect = lambda address, name: asyncio.Event().wait()
    assert "within 0.1 seconds" in refusal(host)


def test_the_time_to_fetch_includes_the_look_up_of_the_address():
    answered = threading.Event()
    host = Host(PUBLIC, fetch_seconds=0.1)
    host.fetcher._resolve = lambda *asked, **options: answered.wait()
    try:
        with pytest.raises(Refusal, match="within 0.1 seconds"), RoomClaim(host.room, "bytes") as claim:
            asyncio.run(host.fetcher.fetch(f"https://{HOST}/a.png", "image 1", claim))
    finally:
        answered.set()


def test_fetched_bytes_need_room():
    host = Host(PUBLIC)
    host.room = Room(4)
    with pytest.raises(Refusal, match="too many bytes at once") as refused:
        host.fetch()
    assert refused.value.status == 503 and host.room.taken == 0
