"""Finished answers on disk, so that an interrupted evaluation continues where it stopped.

DIR/settings.json     what must be the same for all runs that share the directory
DIR/answers/*.jsonl   one file per method and budget, one line per image
DIR/results.*         a summary over the most images that were evaluated
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from covist.errors import CovistError
from covist.outputs import short_name, writable_directory, write_json
from covist.request.answer import Configuration
from covist.schedule import CoverageBudget

LAYOUT = 3
"""Version of the directory's layout; a directory with another one is refused."""


@dataclass(frozen=True)
class Run(Configuration):
    """A method at a budget: a number of tokens, a share of each image's as text ("11%"), or "auto:LEVEL"."""

    budget: int | str


def budget_size(budget: int | str) -> float:
    """A key that sorts budgets: levels of coverage first, then shares, then counts.

    >>> sorted([64, "5%", 128, "11%", "auto:0.9"], key=budget_size)
    ['auto:0.9', '5%', '11%', 64, 128]
    """
    needed = CoverageBudget.read(budget)
    if needed is not None:
        return needed.level - 1
    return float(budget) if isinstance(budget, int) else float(budget.rstrip("%")) / 100


@dataclass(frozen=True)
class Answered:
    """The answers of a run about one image, the time, and the layer means of visual tokens.

    tokens, cached: of prefill, and of the cache after it; `cached` is None if both are the same
    target: the tokens that the budget came to for this image; None if that is the budget itself
    written: the tokens of each answer
    losses: of the words of given texts, in nats, for suites that score these
    sitting: the call of `evaluate` that made it; times of different calls may be from different days and machines
    """

    image: int
    answers: list[str]
    seconds: float
    tokens: float
    sitting: str = ""
    cached: float | None = None
    target: float | None = None
    written: list[list[int]] | None = None
    losses: list[list[float | None]] | None = None

    @property
    def cached_tokens(self) -> float:
        return self.tokens if self.cached is None else self.cached


class Records:
    """Answers by run and image, in memory, and also in a directory if one is given."""

    def __init__(self, directory: str | Path | None, settings: dict[str, Any]):
        self.settings = {"layout": LAYOUT, **settings}
        self.sitting = uuid4().hex[:8]
        self._directory = None if directory is None else Path(directory)
        self._answers: dict[Run, dict[int, Answered]] = {}
        if self._directory is not None:
            (writable_directory(self._directory) / "answers").mkdir(exist_ok=True)
            self._adopt_settings()

    def of(self, run: Run) -> dict[int, Answered]:
        """Answers by image number, read from the directory when a run is first needed."""
        if run not in self._answers:
            self._answers[run] = self._read(run)
        return self._answers[run]

    def runs(self) -> list[Run]:
        """Every run with answers in the directory, sorted by name and decreasing budget, shares after counts."""
        paths = [] if self._directory is None else (self._directory / "answers").glob("*.jsonl")
        lines = (json.loads(line) for path in paths for line in _whole_lines(path))
        found = {Run(line["method"], line["budget"]) for line in lines}
        return sorted(found, key=lambda run: (run.method, -budget_size(run.budget)))

    def add(self, run: Run, answered: Answered) -> None:
        self.of(run)[answered.image] = answered
        if self._directory is not None:
            with self._path(run).open("a", encoding="utf-8") as file:
                line = {"method": run.method, "budget": run.budget, **asdict(answered)}
                file.write(json.dumps(line) + "\n")

    def settle(self, name: str, value: Any) -> None:
        """Store a setting that was not known when the directory was opened."""
        self.settings[name] = value
        if self._directory is not None:
            write_json(self._directory / "settings.json", self.settings)

    def _adopt_settings(self) -> None:
        """Refuse a directory made with other settings; take over settings that it has already stored."""
        assert self._directory is not None
        path = self._directory / "settings.json"
        if not path.exists():
            write_json(path, self.settings)
            return
        stored = self._stored_settings(path)
        for name, value in self.settings.items():
            if value is not None and stored.get(name) != value:
                raise CovistError(
                    f"{self._directory} holds answers with {name}={stored.get(name)!r}, not {value!r}; "
                    "choose another directory"
                )
        self.settings = stored

    def _stored_settings(self, path: Path) -> dict[str, Any]:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise CovistError(f"{path} is damaged; choose another directory") from None
        if not isinstance(stored, dict) or stored.get("layout") != LAYOUT:
            raise CovistError(f"{self._directory} was written by another version of covist; choose another directory")
        return stored

    def _path(self, run: Run) -> Path:
        assert self._directory is not None
        method, budget = re.sub(r"[^\w.=-]+", "_", run.method), str(run.budget).replace(":", "_")
        return self._directory / "answers" / f"{short_name(f'{method}@{budget}')}.jsonl"

    def _read(self, run: Run) -> dict[int, Answered]:
        if self._directory is None or not self._path(run).exists():
            return {}
        found = {}
        for line in map(json.loads, _whole_lines(self._path(run))):
            if Run(line.pop("method"), line.pop("budget")) == run:
                found[line["image"]] = Answered(**line)
        return found


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file of answers; an incomplete last line, left by a killed process, is removed."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return whole.splitlines()
