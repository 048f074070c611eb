"""API keys: read from a file, compared in constant time, never stored as text."""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path

from covist.errors import CovistError
from covist.serve.errors import Refusal


class Keys:
    """The keys that clients may use; without keys, every client is allowed."""

    def __init__(self, keys: list[str] | None = None):
        """Keys are visible ASCII: clients encode other characters in headers in different ways, or not at all."""
        if not all(_is_sendable(key) for key in keys or ()):
            raise CovistError("API keys may contain only visible ASCII characters, without spaces")
        self._digests = None if keys is None else [_digest(key) for key in keys]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """One key per line; empty lines and lines that begin with # are skipped."""
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise CovistError(f"--api-key-file {path} cannot be read ({error})") from None
        keys = {number: line for number, line in enumerate(lines, 1) if line and not line.startswith("#")}
        if not keys:
            raise CovistError(f"--api-key-file {path} has no key; put one on each line")
        if bad := [number for number, key in keys.items() if not _is_sendable(key)]:
            raise CovistError(
                f"--api-key-file {path}, line {bad[0]}: a key may contain only visible ASCII characters, without spaces"
            )
        return cls(list(keys.values()))

    def check(self, authorization: str | None) -> None:
        """Refuse a request without a valid key."""
        if self._digests is None:
            return
        scheme, _, key = (authorization or "").partition(" ")
        if not self.know(key.strip()) or scheme.lower() != "bearer":
            message = "no valid API key: send one as `Authorization: Bearer KEY`"
            raise Refusal(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})

    def know(self, key: str) -> bool:
        """Whether this is one of the keys. All are compared, so that the time reveals nothing about them."""
        given = _digest(key)
        return self._digests is None or any([hmac.compare_digest(given, digest) for digest in self._digests])


def _is_sendable(key: str) -> bool:
    return key.isascii() and key.isprintable() and " " not in key


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
