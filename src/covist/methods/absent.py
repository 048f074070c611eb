"""The systems that the paper compares or cites but that covist does not include, each with the reason."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WHY = {
    "trained": "it is trained, so an unmodified checkpoint cannot run it",
    "another kind": "it does not choose visual tokens",
    "no public text": "we found no public text beyond its title or abstract",
    "not specified": "the public text does not specify it",
    "open choices": "the public text leaves steps open that we would have to choose ourselves",
}
"""The kinds of reasons, from systems that cannot be included to those that could be with choices of our own."""


@dataclass(frozen=True)
class Absent:
    """A system of the paper that covist does not include."""

    name: str  # as the paper writes it
    venue: str
    listed: str  # where the paper lists it
    why: str  # a word of `WHY`
    missing: str = ""  # what exactly is missing
    instead: str = ""  # the closest method of covist, if there is one

    def __str__(self) -> str:
        missing = f" ({self.missing})" if self.missing else ""
        near = f"; {self.instead} comes closest" if self.instead else ""
        return f"{self.name} ({self.venue}) is in the paper but not in covist: {WHY[self.why]}{missing}{near}"


@cache
def absent_systems() -> tuple[Absent, ...]:
    """All absent systems, sorted by kind of reason."""
    entries = json.loads((Path(__file__).parent / "absent.json").read_text(encoding="utf-8"))
    return tuple(sorted((Absent(**entry) for entry in entries), key=lambda one: list(WHY).index(one.why)))


def absent_named(name: str) -> Absent | None:
    """The entry of a name in any spelling: `hidrop`, `d2-pruner`, `Ada-KV`.

    >>> absent_named("hidrop").why
    'trained'
    """
    return next((one for one in absent_systems() if _key(one.name) == _key(name)), None)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", unicodedata.normalize("NFKC", name).lower())
