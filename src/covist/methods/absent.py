"""The systems that the paper compares or cites and that are not here, each with the reason."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WHY = {
    "trained": "it is trained, so that an unmodified checkpoint cannot run it",
    "another kind": "it does not choose visual tokens",
    "no public text": "we found no public text beyond its title or abstract",
    "not specified": "what is public does not specify it",
    "open choices": "what is public leaves steps open that we would have to choose ourselves",
}
"""The kinds of reasons, from what cannot be here to what could be with choices of our own."""


@dataclass(frozen=True)
class Absent:
    """A system of the paper that is not here."""

    name: str  # as the paper writes it
    venue: str
    listed: str  # where in the paper
    why: str  # a word of `WHY`
    missing: str = ""  # what exactly is missing
    instead: str = ""  # the method here that comes closest, if one does

    def __str__(self) -> str:
        missing = f" ({self.missing})" if self.missing else ""
        near = f"; {self.instead} comes closest" if self.instead else ""
        return f"{self.name} ({self.venue}) is in the paper but not here: {WHY[self.why]}{missing}{near}"


@cache
def absent_systems() -> tuple[Absent, ...]:
    """Every one, by the kinds of reasons."""
    entries = json.loads((Path(__file__).parent / "absent.json").read_text(encoding="utf-8"))
    return tuple(sorted((Absent(**entry) for entry in entries), key=lambda one: list(WHY).index(one.why)))


def absent_named(name: str) -> Absent | None:
    """The entry of a name however it is written: `hidrop`, `d2-pruner`, `Ada-KV`.

    >>> absent_named("hidrop").why
    'trained'
    """
    return next((one for one in absent_systems() if _key(one.name) == _key(name)), None)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", unicodedata.normalize("NFKC", name).lower())
