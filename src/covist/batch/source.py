"""What a job requires of its input: rows in a fixed order, so that a number identifies a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from covist.batch.columns import Look
from covist.batch.rows import Row
from covist.units import counted


@dataclass(frozen=True)
class Survey:
    """The size and the identity of an input, found by going through it once.

    fingerprint: changes with the content, not with the path
    left_out: files of a folder that are not read: how many by their ending
    """

    rows: int
    fingerprint: str
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """What has become of an input since its job began or was last continued.

    added:   rows that have come; they are answered after the others
    gone:    images that are no longer there; their answers stay
    changed: images that were written again since; their answers stay
    """

    added: int = 0
    gone: int = 0
    changed: int = 0

    def notes(self, name: str, known: int) -> list[str]:
        """What a user should know about it, in sentences."""
        told = []
        if self.added:
            told.append(f"{name} has grown: {counted(self.added, 'row')} more than the {known:,} of before")
        if self.gone:
            told.append(f"{name}: {counted(self.gone, 'image')} of the job no longer found; given answers stay")
        if self.changed:
            told.append(f"{name}: {counted(self.changed, 'image')} written again since; given answers stay")
        return told


class Source(ABC):
    """Rows in a fixed order. All sources are read as streams, except a JSON list.

    name: what users call it
    unit: what its rows are called in messages
    has_unique_ids: whether no two rows can have the same id
    """

    unit = "rows"
    has_unique_ids = False

    def __init__(self, name: str):
        self.name = name

    @abstractmethod
    def survey(self) -> Survey:
        """Count the rows, and fingerprint them."""

    @abstractmethod
    def look(self) -> Look:
        """The fields of the rows; they are read for it, if they do not share their fields."""

    def check(self, prompt: str | None) -> None:
        """Refuse rows of which none can be answered, with `prompt` if they ask nothing themselves."""
        self.look().check(self.name, prompt)

    @abstractmethod
    def rows(self, start: int = 0) -> Iterator[Row]:
        """The rows from number `start` on; earlier rows are not parsed."""

    def begin(self, roster: Path, survey: Survey) -> Survey:
        """Fix the order of the rows for a new job, in a file of its directory if need be; what it then consists of."""
        return survey

    @abstractmethod
    def resume(self, roster: Path, rows: int, fingerprint: str) -> Change:
        """What has come to the first rows, of which there were so many; another input is refused."""
