"""The manifest of a job: what its answers depend on, so that a directory never mixes answers of two kinds."""

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
"""Version of the directory's layout; a directory with another one is refused."""


@dataclass(frozen=True)
class Order:
    """What a job shall do: everything but where and how fast it runs.

    part_rows: input rows per part
    """

    input: Path
    spec: WorkerSpec
    format: str = "parquet"
    part_rows: int = 256

    def settings(self) -> dict[str, Any]:
        """What must not change between two runs of a job, by the names of the command's options."""
        spec, setup = self.spec, self.spec.setup
        return {
            "covist": __version__,
            "model": spec.model,
            "clip": spec.clip,
            "method": setup.method,
            "budget": str(setup.budget),
            "constants": "published" if setup.constants is None else setup.constants.to_dict(),
            "concentration": "measured" if setup.concentration is None else setup.concentration,
            "min-coverage": setup.min_coverage,
            "calibration": None if setup.calibration is None else setup.calibration.to_dict(),
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
    """The stored facts about the model; a directory made from other input or with other settings is refused."""
    if stored.get("layout") != LAYOUT:
        raise CovistError(f"{directory} was written by another version of covist; choose another directory")
    if stored["input"]["fingerprint"] != survey.fingerprint:
        raise CovistError(
            f"the content of {order.input} is not what {directory} was made from ({stored['input']['path']}); "
            "choose another directory"
        )
    for name, value in order.settings().items():
        there = stored["settings"].get(name)
        if there != value:
            differs = f"{name}: {there} then, {value} now"
            raise CovistError(f"{directory} was made with other settings ({differs}); choose another directory")
    return Facts(**stored["model"])
