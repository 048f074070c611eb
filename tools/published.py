"""What the tables of docs/ say, for the tools that show it elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLES = "results-tables.md"
FIRST, SECOND = "### First test bed", "### Second test bed"
"""The sections of TABLES whose first table has a row for every method."""
MEASURED = re.compile(r"([\d.]+) \[([\d.]+), ([\d.]+)\]")


class Measured(NamedTuple):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def table(page: str, heading: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the first table in the section below a heading."""
    section = (DOCS / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n#")[0]
    first = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    if first is None:
        raise ValueError(f"docs/{page} has no table below {heading!r}")
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in first[0].splitlines()]
    return head, rows


def measured(cell: str) -> Measured | None:
    """A cell that begins with a figure and its interval; None for one that holds anything else."""
    found = MEASURED.match(cell)
    return Measured(*map(float, found.groups())) if found else None


def retention(heading: str) -> dict[str, dict[int, Measured]]:
    """Method -> budget -> retention, where the method reached the budget. Columns of budgets are named by a number."""
    (_, *budgets), rows = table(TABLES, heading)
    return {
        name.rstrip(" ¹"): {
            int(budget): found
            for budget, cell in zip(budgets, cells, strict=True)
            if budget.isdecimal() and (found := measured(cell))
        }
        for name, *cells in rows
    }
