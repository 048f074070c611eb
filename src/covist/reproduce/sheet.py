"""A table as text cells, from which all output formats start; every line says where its figures come from."""

from __future__ import annotations

from dataclasses import dataclass

from covist.reproduce.paper import TABLES, TITLE, PaperRow, PaperTable

PAPER, HERE, COMPUTED = "paper", "here", "computed"
_MISSING = "-"


@dataclass(frozen=True)
class SheetLine:
    """One line. `origin` says where its figures come from."""

    system: str
    budget: str
    origin: str
    cells: tuple[str, ...]
    block: str  # lines of one block belong together
    is_covist: bool


@dataclass(frozen=True)
class ResultSheet:
    """A title, headings for the cells, and lines in the order of the paper."""

    title: str
    place: str  # in the paper
    headings: tuple[str, ...]
    lines: tuple[SheetLine, ...]
    notes: tuple[str, ...] = ()

    @property
    def head(self) -> list[str]:
        return ["method", "K", "figures", *self.headings]

    @property
    def rows(self) -> list[list[str]]:
        return [[line.system, line.budget, line.origin, *line.cells] for line in self.lines]

    @property
    def legend(self) -> str:
        """Where the figures come from, one sentence for each kind of line."""
        kinds = {line.origin for line in self.lines}
        said = []
        if PAPER in kinds:
            said.append(f"Lines marked {PAPER} show the figures of {self.place} ({TITLE}), not measured here.")
        if HERE in kinds:
            said.append(f"Lines marked {HERE} come from your own results.")
        if COMPUTED in kinds:
            said.append(f"Lines marked {COMPUTED} are computed from the model's shape.")
        return " ".join(said)


def title(table: PaperTable) -> str:
    """The name for `--table`, with a description."""
    return f"{table.name}: {TABLES.get(table.name, 'the suite of the embedded model')}"


def system_name(row: PaperRow) -> str:
    return f"{row.system} ({row.venue})" if row.venue else row.system


def budget_text(row: PaperRow) -> str:
    """The budget and, if the paper says so, how it is counted."""
    return " ".join(filter(None, (str(row.budget) if row.budget else "all", row.counting)))


def figure_text(value: float | None, digits: int) -> str:
    return _MISSING if value is None else f"{value:.{digits}f}"
