"""The paper's tables: its figures as data, the commands that produce each row, and our figures beside them.

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
    """A table of the paper beside our results. `only`: methods, budgets or tasks to confine a table of scores to.

    >>> import covist.reproduce
    >>> len(covist.reproduce.open_table("main").jobs)
    34
    """
    if name != EFFICIENCY:
        return compare(name, settings, **only)
    if any(only.values()):
        raise CovistError("the efficiency table is whole: it takes no methods, budgets or tasks")
    return efficiency(settings)
