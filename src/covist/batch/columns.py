"""The columns that answers repeat from the input, so that both can be joined and read side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from covist.batch.rows import ASKED, SHOWN
from covist.errors import CovistError

MOST = 1000
"""More different fields are refused: every part would have a column for each."""
_KINDS = {bool: "boolean", int: "integer", float: "number", str: "text"}
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Look:
    """What an input holds, known before a model is loaded.

    fields:  the names of all fields of its rows besides the id
    columns: the fields that answers repeat, and the kind of each: boolean, integer, number or text
    """

    fields: frozenset[str]
    columns: dict[str, str]

    def check(self, name: str, prompt: str | None) -> None:
        """Refuse an input of which no row could be answered."""
        if not self.fields:
            raise CovistError(f"{name}: no row is an object with the fields of a row")
        if not self.fields.intersection(SHOWN):
            found = ", ".join(sorted(self.fields)[:20])
            raise CovistError(f"{name}: no row has image, images or messages; its fields are {found}")
        if prompt is None and not self.fields.intersection(ASKED):
            raise CovistError(f"{name}: no row has a prompt or a question; --prompt gives one to all")
        if len(self.columns) > MOST:
            raise CovistError(f"{name}: its rows have {len(self.columns):,} different fields; {MOST:,} are the limit")


class Kinds:
    """Learns the kind of every column from its values."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if value is not None:
                self.join({name: _kind(value)})

    def join(self, columns: Mapping[str, str]) -> None:
        for name, kind in columns.items():
            self.found[name] = _common(self.found.get(name, kind), kind)


def output_names(columns: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """The names of input columns among the answers: a name that is taken gets `input_` before it.

    >>> output_names(["image", "answer", "input_answer"], taken=["id", "answer"])
    {'image': 'image', 'answer': 'input_answer', 'input_answer': 'input_input_answer'}
    """
    used, names = set(taken), dict[str, str]()
    for column in columns:
        name = column
        while name in used:
            name = f"input_{name}"
        used.add(name)
        names[column] = name
    return names


def fitted(value: Any, kind: str) -> Any:
    """A value for a column of a kind: what is no text becomes JSON in a column of texts.

    >>> fitted(["a", 1], "text"), fitted(3, "number")
    ('["a", 1]', 3.0)
    """
    if value is None:
        return None
    if kind == "number":
        return float(value)
    if kind != "text":
        return value
    plain = isinstance(value, bool | int | float | list | dict)
    text = json.dumps(value, ensure_ascii=False, default=str) if plain else str(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _kind(value: Any) -> str:
    kind = _KINDS.get(type(value), "text")
    return "text" if kind == "integer" and value not in _INT64 else kind


def _common(one: str, other: str) -> str:
    if one == other:
        return one
    return "number" if {one, other} == {"integer", "number"} else "text"
