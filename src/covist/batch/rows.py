"""Rows: what the input asks, each row under an id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

FIELDS = ("id", "image", "images", "prompt", "messages")
"""The fields that are read; others are ignored."""
_ID_DIGITS = 24  # hexadecimal digits of a generated id: 96 bits


@dataclass(frozen=True)
class Row:
    """One row of the input; its images are not loaded yet.

    number:  its place in the input, counted from 0
    content: image or images, prompt, messages, as the input has them
    error:   why it cannot be answered, if that is known already
    """

    number: int
    id: str
    content: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def digest(self) -> bytes:
        """A hash of the content: equal for rows that ask the same."""
        return _digest(self.content)


@dataclass(frozen=True)
class Block:
    """The rows of one part that are still to be answered; what a driver gives to a worker."""

    index: int
    rows: list[Row]


def read_row(number: int, values: Any) -> Row:
    """A row from the fields of the input; anything wrong with it becomes its `error`.

    >>> read_row(0, {"id": 7, "image": "a.png", "prompt": "what ?", "colour": "red"})
    Row(number=0, id='7', content={'image': 'a.png', 'prompt': 'what ?'}, error=None)
    """
    if not isinstance(values, Mapping):
        return bad_row(number, str(values).encode(), "not an object with the fields of a row")
    content = {name: values[name] for name in FIELDS[1:] if values.get(name) is not None}
    given = values.get("id")
    if given is None:
        return Row(number, made_id(content), content)
    if isinstance(given, bool) or not isinstance(given, str | int) or not is_text(str(given)):
        # The generated id includes the bad one: the same row without an id is a different row.
        return Row(number, made_id({**content, "id": given}), content, "id must be text or a whole number")
    return Row(number, str(given), content)


def bad_row(number: int, raw: bytes, error: str) -> Row:
    """A row that cannot be read at all; its id is generated from its bytes."""
    return Row(number, sha256(raw).hexdigest()[:_ID_DIGITS], {"unread": sha256(raw).hexdigest()}, error)


def is_text(value: str) -> bool:
    """Whether a text is not empty and can be encoded: JSON allows lone surrogates, which UTF-8 does not."""
    return bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def made_id(content: dict[str, Any]) -> str:
    """An id generated from the content, for rows that have none."""
    return _digest(content).hex()[:_ID_DIGITS]


def _digest(content: dict[str, Any]) -> bytes:
    plain = json.dumps(content, sort_keys=True, ensure_ascii=False, default=_plain)
    return sha256(plain.encode("utf-8", "surrogatepass")).digest()


def _plain(value: Any) -> str:
    """Values that JSON cannot express, such as image bytes and dates."""
    return sha256(value).hexdigest() if isinstance(value, bytes) else repr(value)
