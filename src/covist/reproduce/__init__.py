"""The paper's tables as data, the commands that reproduce each row, and your results beside the paper's figures.

beside = covist.reproduce.open_table("main", Settings(results=Path("reproduced")))
print(beside.jobs[0].line)
"""

from __future__ import annotations

from typing import Any

from covist.errors import CovistError
from covist.reproduce.compare import Comparison, compare
from covist.reproduce.efficiency import Efficiency, efficiency
from covist.reproduce.paper import EFFICIENCY, TABLES, PaperRow, PaperTable, load_table
from covist.reproduce.retention import pope_f1, retention
from covist.reproduce.runs import Job, Settings

__all__ = [
    "TABLES",
    "Comparison",
    "Efficiency",
    "Job",
    "PaperRow",
    "PaperTable",
    "Settings",
    "load_table",
    "open_table",
    "pope_f1",
    "retention",
]


def open_table(name: str, settings: Settings | None = None, **only: Any) -> Comparison | Efficiency:
    """A table of the paper with your results beside its figures, and the commands for the missing ones.

    name: one of `covist.reproduce.TABLES`, or "scenes" for the embedded model
    settings: where results are, and how commands are run
    only: `methods`, `budgets` or `tasks`, lists that restrict a table of scores

    >>> import covist.reproduce
    >>> len(covist.reproduce.open_table("main").jobs)
    34
    """
    if name != EFFICIENCY:
        return compare(name, settings, **only)
    if any(only.values()):
        raise CovistError("the efficiency table cannot be restricted to methods, budgets or tasks")
    return efficiency(settings)
