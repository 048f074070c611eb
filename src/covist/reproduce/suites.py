"""The embedded model's task as a table: without figures of the paper, but with the same commands and drawings.

`covist export` writes a suite as a task of lmms-eval, which scores it by its families of questions.
"""

from __future__ import annotations

from covist.eval import load_suite
from covist.reproduce.paper import VANILLA, PaperRow, PaperTable
from covist.reproduce.tasks import family_column

SUITE = "scenes"
METHODS = ("covist-fixed", "covist-pro", "random", "downsample")
BUDGETS = (192, 128, 64, 32)


def suite_table() -> PaperTable:
    """An empty table with a column for each family of questions.

    >>> suite_table().title
    'not a table of the paper'
    """
    suite = load_suite(SUITE)
    rows = [PaperRow(method, budget) for budget in BUDGETS for method in METHODS]
    tasks = tuple(family_column(SUITE, family) for family in suite.families)
    return PaperTable(SUITE, "", None, "", suite.model, (PaperRow(VANILLA, None), *rows), tasks, suite=SUITE)
