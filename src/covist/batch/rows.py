"""Rows: what the input asks, each row under an id."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from covist.request.data_urls import is_data_url

SHOWN = ("image", "images", "messages")
"""The fields that may hold what a row is about."""
ASKED = ("prompt", "question", "messages")
"""The fields that may hold what it asks; `question` stands for `prompt` in rows without one."""
FIELDS = ("id", "image", "images", "prompt", "messages")
"""The fields that are read."""
HERE = Path()
_ID_DIGITS = 24  # hexadecimal digits of a generated id: 96 bits
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")
"""Without a dot, which image names have, and longer than most names."""
_LONGEST_NAME = 4096  # the longest path on Linux


@dataclass(frozen=True)
class Row:
    """One row of the input; its images are not loaded yet.

    number:  its place in the input, counted from 0
    content: image or images, prompt, messages, as the input has them
    error:   why it cannot be answered, if that is known already
    folder:  what the paths of its images are relative to
    given:   the fields that its answer repeats; a worker does not need them
    """

    number: int
    id: str
    content: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    folder: Path = HERE
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """A hash of what it holds besides its id: equal for rows that repeat each other."""
        return _digest([self.content, self.given])


@dataclass(frozen=True)
class Block:
    """The rows of one part that are still to be answered; what a driver gives to a worker."""

    index: int
    rows: list[Row]


def read_row(number: int, values: Any, folder: Path = HERE) -> Row:
    """A row from the fields of the input; anything wrong with it becomes its `error`.

    >>> row = read_row(0, {"id": 7, "image": "a.png", "question": "what ?", "colour": "red"})
    >>> row.id, row.content
    ('7', {'image': 'a.png', 'prompt': 'what ?'})
    >>> row.given
    {'image': 'a.png', 'question': 'what ?', 'colour': 'red'}
    """
    if not isinstance(values, Mapping):
        return bad_row(number, str(values).encode(), "not an object with the fields of a row")
    content = {name: values[name] for name in FIELDS[1:] if values.get(name) is not None}
    if "prompt" not in content and values.get("question") is not None:
        content["prompt"] = values["question"]
    given = {name: value for name, value in values.items() if name not in ("id", "messages") and value is not None}
    for name in given.keys() & {"image", "images"}:
        given[name] = _names(given[name])
    row = Row(number, "", content, None, folder, given)
    wanted = values.get("id")
    if wanted is None:
        return _named(row, row.digest.hex()[:_ID_DIGITS])
    if isinstance(wanted, bool) or not isinstance(wanted, str | int) or not is_text(str(wanted)):
        # The generated id includes the bad one: the same row without an id is a different row.
        made = _digest([content, given, {"id": wanted}]).hex()[:_ID_DIGITS]
        return _named(row, made, "id must be text or a whole number")
    return _named(row, str(wanted))


def _named(row: Row, name: str, error: str | None = None) -> Row:
    return Row(row.number, name, row.content, error, row.folder, row.given)


def bad_row(number: int, raw: bytes, error: str) -> Row:
    """A row that cannot be read at all; its id is generated from its bytes."""
    return Row(number, sha256(raw).hexdigest()[:_ID_DIGITS], {"unread": sha256(raw).hexdigest()}, error)


def is_text(value: str) -> bool:
    """Whether a text is not empty and can be encoded: JSON allows lone surrogates, which UTF-8 does not."""
    return bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def may_be_base64(text: str) -> bool:
    """Whether a text may be an image itself, and not the name of one."""
    return len(text) > _LONGEST_NAME or _BASE64.fullmatch(text) is not None


def _names(shown: Any) -> Any:
    """The path of an image, or those of several; None for one that the row holds itself."""
    if isinstance(shown, list):
        return [_names(one) for one in shown]
    if isinstance(shown, Mapping):
        shown = shown.get("path")
    is_name = isinstance(shown, str) and not is_data_url(shown) and not may_be_base64(shown)
    return shown if is_name else None


def _digest(values: Any) -> bytes:
    plain = json.dumps(values, sort_keys=True, ensure_ascii=False, default=_plain)
    return sha256(plain.encode("utf-8", "surrogatepass")).digest()


def _plain(value: Any) -> str:
    """Values that JSON cannot express, such as image bytes and dates."""
    return sha256(value).hexdigest() if isinstance(value, bytes) else repr(value)
