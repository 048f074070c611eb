"""Rows: what is asked, as it stands in the input, under an id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

FIELDS = ("id", "image", "images", "prompt", "messages")
"""What is read of a row; other fields are ignored."""
_ID_DIGITS = 24  # of an id that is made from the content: 96 bits


@dataclass(frozen=True)
class Row:
    """One row of the input, nothing of it loaded yet.

    number:  its place in the input, counted from 0
    content: image or images, prompt, messages, as the input has them
    error:   why it cannot be asked, if that is known already
    """

    number: int
    id: str
    content: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def digest(self) -> bytes:
        """The same for rows that ask the same."""
        return _digest(self.content)


@dataclass(frozen=True)
class Block:
    """Rows that belong to one part, as far as they are still to be answered; what a driver hands to a worker."""

    index: int
    rows: list[Row]


def read_row(number: int, values: Any) -> Row:
    """A row from the fields of the input; whatever is wrong with it is its `error`.

    >>> read_row(0, {"id": 7, "image": "a.png", "prompt": "what ?", "colour": "red"})
    Row(number=0, id='7', content={'image': 'a.png', 'prompt': 'what ?'}, error=None)
    """
    if not isinstance(values, Mapping):
        return bad_row(number, str(values).encode(), "no object with the fields of a row")
    content = {name: values[name] for name in FIELDS[1:] if values.get(name) is not None}
    given = values.get("id")
    if given is None:
        return Row(number, made_id(content), content)
    if isinstance(given, bool) or not isinstance(given, str | int) or not is_text(str(given)):
        return Row(number, made_id(content), content, "id must be text or a whole number")
    return Row(number, str(given), content)


def bad_row(number: int, raw: bytes, error: str) -> Row:
    """A row that cannot be read at all; its id is made from its bytes."""
    return Row(number, sha256(raw).hexdigest()[:_ID_DIGITS], {"unread": sha256(raw).hexdigest()}, error)


def is_text(value: str) -> bool:
    """Whether a text has letters, and only such as files can hold: JSON can spell halves of them."""
    return bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def made_id(content: dict[str, Any]) -> str:
    """An id from the content, for rows that have none."""
    return _digest(content).hex()[:_ID_DIGITS]


def _digest(content: dict[str, Any]) -> bytes:
    plain = json.dumps(content, sort_keys=True, ensure_ascii=False, default=_plain)
    return sha256(plain.encode("utf-8", "surrogatepass")).digest()


def _plain(value: Any) -> str:
    """What JSON has no word for: bytes of images, dates."""
    return sha256(value).hexdigest() if isinstance(value, bytes) else repr(value)
