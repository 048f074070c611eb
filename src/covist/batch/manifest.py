"""The manifest of a job: what its answers depend on, so that a directory never mixes answers of two kinds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covist import __version__
from covist.batch.columns import Look
from covist.batch.source import Survey
from covist.batch.sources import Paths
from covist.batch.spec import Facts, WorkerSpec
from covist.environment import versions
from covist.errors import CovistError

LAYOUT = 2
"""Version of the directory's layout; a directory with another one is refused."""


@dataclass(frozen=True)
class Order:
    """What a job shall do: everything but where and how fast it runs.

    input: a path, or several; a path may be a pattern, or "-" for standard input
    part_rows: input rows per part
    """

    input: Paths
    spec: WorkerSpec
    format: str = "parquet"
    part_rows: int = 256

    def settings(self, facts: Facts) -> dict[str, Any]:
        """What must not change between two runs of a job, by the names of the command's options.

        A budget that is left open is the model's default, as `facts` have it.
        """
        spec, setup = self.spec, self.spec.setup
        return {
            "covist": __version__,
            "model": spec.model,
            "clip": spec.clip,
            "method": setup.method,
            "budget": str(setup.over(facts.defaults).budget),
            "constants": "published" if setup.constants is None else setup.constants.to_dict(),
            "concentration": "measured" if setup.concentration is None else setup.concentration,
            "min-coverage": setup.min_coverage,
            "max-visual-tokens": setup.max_visual_tokens,
            "calibration": None if setup.calibration is None else setup.calibration.to_dict(),
            "max-new-tokens": spec.max_new_tokens,
            "prompt": spec.prompt,
            "plugin": [plugin.identity for plugin in spec.plugins],
            "format": self.format,
            "part-rows": self.part_rows,
        }


@dataclass(frozen=True)
class Extent:
    """The rows of a job, in parts: a part never holds rows of before and after the input has grown.

    ends: how many rows the input had when the job began, and after each time that it had grown
    """

    ends: tuple[int, ...]
    part_rows: int

    @property
    def rows(self) -> int:
        return self.ends[-1]

    def parts(self) -> list[range]:
        """The numbers of the rows of each part."""
        starts = (0, *self.ends)
        return [
            range(first, min(first + self.part_rows, end))
            for start, end in zip(starts, self.ends, strict=False)
            for first in range(start, end, self.part_rows)
        ]


def new_manifest(order: Order, name: str, survey: Survey, columns: dict[str, str], facts: Facts) -> dict[str, Any]:
    return {
        "layout": LAYOUT,
        "input": {"path": name, "fingerprint": survey.fingerprint, "rows": [survey.rows], "columns": columns},
        "settings": order.settings(facts),
        "model": asdict(facts),
        "versions": versions(),
    }


def check_settings(stored: dict[str, Any], order: Order, directory: Path) -> Facts:
    """The stored facts about the model; a directory that was made with other settings is refused."""
    if stored.get("layout") != LAYOUT:
        raise CovistError(f"{directory} was written by another version of covist; choose another directory")
    facts = Facts(**stored["model"])
    for name, value in order.settings(facts).items():
        there = stored["settings"].get(name)
        if there != value:
            differs = f"{name}: {there} then, {value} now"
            raise CovistError(f"{directory} was made with other settings ({differs}); choose another directory")
    return facts


def grown_manifest(stored: dict[str, Any], name: str, survey: Survey, look: Look, rows: int) -> dict[str, Any]:
    """The manifest of a job whose input now has so many rows; columns that differ are refused."""
    known = stored["input"]
    for column in {**known["columns"], **look.columns}:
        before, now = (columns.get(column, "none") for columns in (known["columns"], look.columns))
        if before != now:
            raise CovistError(
                f"the new rows of {name} have other fields, which answers repeat ({column}: {before} then, {now} now); "
                "choose another directory"
            )
    ends = [*known["rows"], rows]
    return {**stored, "input": {**known, "fingerprint": survey.fingerprint, "rows": ends}}
