"""The paper's tables as data: every figure is the paper's, none was measured here.

`tools/paper_tables.py` extracted the files in `tables` from the paper's LaTeX.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from covist.errors import CovistError, choose_instead

TITLE = "CoViST: Visual Token Compression via Composable States"
OWN = "own"
"""The reference of rows whose retention is relative to the uncompressed model of their own table."""
VANILLA = "Vanilla"
EFFICIENCY = "efficiency"
TABLES = {
    "main": "LLaVA-1.5-7B, seven tasks",
    "13b": "LLaVA-1.5-13B, seven tasks",
    "next": "LLaVA-NeXT-7B, seven tasks",
    "qwen": "Qwen2.5-VL-7B, eight tasks",
    "components": "the cumulative study, six tasks",
    EFFICIENCY: "time, FLOPs and cache of LLaVA-NeXT-7B",
    "fixed": "LLaVA-1.5-7B, six tasks, every method that acts before the decoder",
    "fixed-p": "the same with MME perception alone",
    "layers": "LLaVA-1.5-7B, six tasks, methods that act inside the decoder, by layer average",
    "layers-p": "the same with MME perception alone",
    "after": "LLaVA-1.5-7B, six tasks, methods counted by what they keep after pruning",
}
"""The names for `--table`, with descriptions."""
_FOLDER = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class PaperRow:
    """One line of a table: a system at a budget. A score is `None` where the paper has a dash."""

    system: str
    budget: int | None  # None for the uncompressed model
    scores: Mapping[str, float | None] = field(default_factory=dict)  # of tasks; empty in the cumulative study
    retention: float | None = None
    venue: str | None = None
    counting: str | None = None  # how the budget counts, in the paper's words: fixed, avg., avg. 198
    reference: str | None = OWN  # whose full model the retention is relative to; None: the paper does not say
    figures: Mapping[str, float] = field(default_factory=dict)  # of the efficiency table
    source: str | None = None  # who reported it, if not the system's own paper


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, with the scores of full models (`references`) that its appendix gives."""

    name: str
    label: str
    number: int | None  # None for a table that is not in the paper
    caption: str
    model: str
    rows: tuple[PaperRow, ...]
    tasks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # of the efficiency table
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    panel: str | None = None
    suite: str | None = None  # the bundled suite that is exported as the task

    @property
    def title(self) -> str:
        """Where the figures are in the paper."""
        if self.number is None:
            return "not a table of the paper"
        return f"Table {self.number}{f' ({self.panel})' if self.panel else ''} of the paper, {self.label}"

    @property
    def budgets(self) -> list[int]:
        return list(dict.fromkeys(row.budget for row in self.rows if row.budget is not None))


@cache
def load_table(name: str) -> PaperTable:
    """A table of the paper, by its name in `covist reproduce --table`.

    >>> import covist.reproduce
    >>> covist.reproduce.load_table("main").rows[-1].retention
    99.1
    """
    if name not in TABLES:
        raise CovistError(f"unknown table {name!r}; {choose_instead(name, [*TABLES, 'scenes'])}")
    content: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for name_of_list in ("tasks", "columns"):
        content[name_of_list] = tuple(content.get(name_of_list, ()))
    content["rows"] = tuple(PaperRow(**row) for row in content["rows"])
    return PaperTable(**content)
