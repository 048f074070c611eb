"""The manifest of a job: what its answers hang on, so that a directory never mixes answers of two kinds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covist import __version__
from covist.batch.sources import Survey
from covist.batch.spec import Facts, WorkerSpec
from covist.environment import versions
from covist.errors import CovistError

LAYOUT = 1
"""Counts the changes to what a directory holds; one of another layout is refused."""


@dataclass(frozen=True)
class Order:
    """What is asked for: everything but where and how fast it runs.

    part_rows: rows of the input that become one part
    """

    input: Path
    spec: WorkerSpec
    format: str = "parquet"
    part_rows: int = 256

    def settings(self) -> dict[str, Any]:
        """What must not change between two sittings, as people name it."""
        spec = self.spec
        return {
            "covist": __version__,
            "model": spec.model,
            "clip": spec.clip,
            "method": spec.method,
            "budget": str(spec.budget),
            "constants": "published" if spec.constants is None else spec.constants.to_dict(),
            "concentration": "measured" if spec.concentration is None else spec.concentration,
            "min-coverage": spec.min_coverage,
            "calibration": None if spec.calibration is None else spec.calibration.to_dict(),
            "max-new-tokens": spec.max_new_tokens,
            "prompt": spec.prompt,
            "format": self.format,
            "part-rows": self.part_rows,
        }


def new_manifest(order: Order, survey: Survey, facts: Facts) -> dict[str, Any]:
    return {
        "layout": LAYOUT,
        "input": {"path": str(order.input), **asdict(survey)},
        "settings": order.settings(),
        "model": asdict(facts),
        "versions": versions(),
    }


def check_manifest(stored: dict[str, Any], order: Order, survey: Survey, directory: Path) -> Facts:
    """What the directory knows of its model; one that was made from other input or settings is refused by name."""
    if stored.get("layout") != LAYOUT:
        raise CovistError(f"{directory} was written by another version of covist; choose another directory")
    if stored["input"]["fingerprint"] != survey.fingerprint:
        raise CovistError(
            f"{directory} was made from {stored['input']['path']} as it was then, {order.input} holds something else; "
            "choose another directory"
        )
    for name, value in order.settings().items():
        there = stored["settings"].get(name)
        if there != value:
            differs = f"{name}: there {there}, now {value}"
            raise CovistError(f"{directory} was made with other settings ({differs}); choose another directory")
    return Facts(**stored["model"])
