"""Finished answers on disk, so that an interrupted evaluation continues where it stopped.

DIR/settings.json     what must be the same for all runs that share the directory
DIR/answers/*.jsonl   one file per method and budget, one line per image
DIR/results.*         a summary over the most images that were evaluated
DIR/lock              held by the process that answers; it stays there
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from covist.budget import Budget, Count, Coverage, Share
from covist.errors import CovistError
from covist.files import parse_json
from covist.outputs import (
    journal_lines,
    lock_directory,
    replace_file,
    short_name,
    writable_directory,
    write_json,
    writing,
)
from covist.units import counted

LAYOUT = 3
"""Version of the directory's layout; a directory with another one is refused."""


@dataclass(frozen=True)
class Run:
    """A method at a budget: the key of its answers; other settings are the same for all runs of a directory."""

    method: str
    budget: Budget

    def __str__(self) -> str:
        return f"{self.method} {self.budget}"


def budget_size(budget: Budget) -> tuple[int, float]:
    """A key that sorts budgets: levels of coverage first, then shares, then counts.

    >>> budgets = map(Budget.parse, [64, "5%", 128, "11%", "auto:0.9"])
    >>> " ".join(map(str, sorted(budgets, key=budget_size)))
    'auto:0.9 5% 11% 64 128'
    """
    match budget:
        case Coverage(level=level):
            return 0, level
        case Share(share=share):
            return 1, share
        case _:
            return 2, budget.count_for(sys.maxsize)


@dataclass(frozen=True)
class ItemAnswers:
    """The answers of a run about one image, the time, and the layer means of visual tokens.

    tokens, cached: of prefill, and of the cache after it; `cached` is None if both are the same
    target: the tokens that the budget came to for this image; None if that is the budget itself
    capped: whether a budget that follows the image reached its maximum before it covered enough
    written: the tokens of each answer
    losses: of the words of given texts, in nats, for suites that score these
    code: a checksum of the file of a method that is not covist's own
    call: the call of `evaluate` that made it; times of different calls may be from different days and machines
    """

    image: int
    answers: list[str]
    seconds: float
    tokens: float
    call: str = ""
    cached: float | None = None
    target: float | None = None
    capped: bool = False
    written: list[list[int]] | None = None
    losses: list[list[float | None]] | None = None
    code: str | None = None

    @property
    def cached_tokens(self) -> float:
        return self.tokens if self.cached is None else self.cached


class Records:
    """Answers by run and image, in memory, and also in a directory if one is given.

    One process at a time may open a directory, until `close`, or the end of a `with`.
    """

    def __init__(self, directory: str | Path | None, settings: dict[str, Any]):
        self.settings = {"layout": LAYOUT, **settings}
        self.call = uuid4().hex[:8]
        self._directory = None if directory is None else Path(directory)
        self._answers: dict[Run, dict[int, ItemAnswers]] = {}
        self._lock = None
        if self._directory is not None:
            (writable_directory(self._directory) / "answers").mkdir(exist_ok=True)
            self._lock = lock_directory(self._directory, "covist eval or tune")
            try:
                self._adopt_settings(self._directory)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes into the directory."""
        if self._lock is not None:
            self._lock.release()

    def of(self, run: Run) -> dict[int, ItemAnswers]:
        """Answers by image number, read from the directory when a run is first needed."""
        if run not in self._answers:
            known = self._directory is not None and self._path(run).exists()
            lines = _read(self._path(run)) if known else []
            self._answers[run] = {answered.image: answered for stored, answered in lines if stored == run}
        return self._answers[run]

    def require_same_code(self, run: Run, code: str | None) -> None:
        """Refuse to mix answers of a method with those that it gave before its file was changed."""
        if any(answered.code != code for answered in self.of(run).values()):
            raise CovistError(
                f"{self._directory} holds answers of {run.method} from before its code was changed; choose another "
                f"directory, or delete {self._path(run)}"
            )

    def runs(self) -> list[Run]:
        """Every run with answers in the directory, sorted by name and decreasing budget, shares after counts."""
        paths = [] if self._directory is None else (self._directory / "answers").glob("*.jsonl")
        found = {run for path in paths for run, _ in _read(path)}
        falling = sorted(found, key=lambda run: budget_size(run.budget), reverse=True)
        return sorted(falling, key=lambda run: run.method)

    def add(self, run: Run, answered: ItemAnswers) -> None:
        if self._directory is not None:
            line = {"method": run.method, "budget": run.budget.written, **asdict(answered)}
            with writing(self._directory), self._path(run).open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
        self.of(run)[answered.image] = answered

    def store_setting(self, name: str, value: Any) -> None:
        """Store a setting that was not known when the directory was opened."""
        self.settings[name] = value
        if self._directory is not None:
            write_json(self._directory / "settings.json", self.settings)

    def _adopt_settings(self, directory: Path) -> None:
        """Refuse a directory made with other settings; take over settings that it has already stored."""
        stored = _stored_settings(directory)
        if stored is None:
            write_json(directory / "settings.json", self.settings)
            return
        if stored.get("layout") != LAYOUT:
            raise CovistError(f"{directory} was written by another version of covist; choose another directory")
        for name, value in self.settings.items():
            if value is not None and stored.get(name) != value:
                raise CovistError(
                    f"{directory} holds answers with {name}={stored.get(name)!r}, not {value!r}; "
                    "choose another directory"
                )
        self.settings = stored

    def _path(self, run: Run) -> Path:
        assert self._directory is not None
        method, budget = re.sub(r"[^\w.=-]+", "_", run.method), str(run.budget).replace(":", "_")
        return self._directory / "answers" / f"{short_name(f'{method}@{budget}')}.jsonl"


def _stored_settings(directory: Path) -> dict[str, Any] | None:
    """The settings in a directory; None if it has none and, of a damaged file, no answers that depend on them."""
    path = directory / "settings.json"
    if not path.exists():
        return None
    stored = _json_object(path)
    if stored is not None:
        return stored
    if next((directory / "answers").glob("*.jsonl"), None) is None:
        return None
    summary = _json_object(directory / "results.json") or {}  # it has the settings too
    if isinstance(summary.get("settings"), dict):
        write_json(path, summary["settings"])
        return summary["settings"]
    raise CovistError(
        f"{path} is damaged, and says no longer what the answers next to it depend on; delete it if their settings "
        "were those of this command, or choose another directory"
    )


def _json_object(path: Path) -> dict[str, Any] | None:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _read(path: Path) -> list[tuple[Run, ItemAnswers]]:
    """The lines of a file of answers; damaged ones, left by a power cut or an editor, are removed."""
    lines = journal_lines(path)
    found = [_parse(line) for line in lines]
    damaged = found.count(None)
    if damaged:
        whole = b"".join(line + b"\n" for line, one in zip(lines, found, strict=True) if one is not None)
        replace_file(path, lambda file: file.write(whole))
        warnings.warn(
            f"{path}: {counted(damaged, 'damaged line')} removed; what is missing is answered again", stacklevel=2
        )
    return [one for one in found if one is not None]


def _parse(line: bytes) -> tuple[Run, ItemAnswers] | None:
    """The answers of a line; None if it is damaged."""
    try:
        fields = parse_json(line)
        method, written = fields.pop("method"), fields.pop("budget")
        if "sitting" in fields:  # its name in folders that were begun earlier
            fields["call"] = fields.pop("sitting")
        # A run that sees no image has a count of 0, which nobody may ask for.
        run = Run(method, Count(written) if type(written) is int else Budget.parse(written))
        answered = ItemAnswers(**fields)
        hash(run)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    figures = (answered.seconds, answered.tokens)
    is_whole = type(answered.image) is int and all(isinstance(figure, int | float) for figure in figures)
    has_answers = isinstance(answered.answers, list) and all(isinstance(answer, str) for answer in answered.answers)
    return (run, answered) if is_whole and has_answers else None
