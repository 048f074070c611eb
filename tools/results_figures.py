"""Draw the figures of docs/results/ from the tables of docs/, light and dark.

    python tools/results_figures.py

Nothing is typed here: every point is a cell of a table. Each file contains what it was drawn from, and a test compares
that with the tables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covist.eval.plot import spread
from covist.viz.theme import DARK, LIGHT, Theme
from published import DOCS, FIRST, SECOND, Measured, measured, retention, table

FIGURES = DOCS / "results"
COMMAND = "python tools/results_figures.py"
SIZE, PLOT = (8.8, 4.9), (0.07, 0.115, 0.66, 0.75)  # inches; the axes' left, bottom, width and height in shares of them
LABEL = 0.17  # inches from one label to the next
OURS = ("covist-max", "covist-fixed", "covist-pro")
BASELINE = "random"
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
THEMES = {"light": LIGHT, "dark": DARK}


@dataclass(frozen=True)
class Line:
    """A method at (tokens, retention), from many tokens to few; a grey line has no label."""

    name: str
    points: tuple[tuple[float, Measured], ...]
    grey: bool = False


@dataclass(frozen=True)
class Drawing:
    """What a figure shows, without its colours."""

    title: str
    subtitle: str
    budgets: tuple[int, ...]
    lines: tuple[Line, ...]

    @property
    def source(self) -> str:
        return json.dumps(astuple(self))


def drawings() -> dict[str, Drawing]:
    """Name of a figure -> what the tables say now."""
    return {
        "retention": _bed(FIRST, "First test bed: retention by budget, of 576 tokens"),
        "retention-hd": _bed(SECOND, "Second test bed: retention by budget, of 1,280 tokens"),
        "adaptive": _adaptive("Budgets that follow the image, and fixed ones"),
    }


def _bed(heading: str, title: str) -> Drawing:
    """A line for each row; CoViST, the best rival at each budget and random in front."""
    rows = {name: points for name, points in retention(heading).items() if points}
    budgets = tuple(rows[OURS[0]])
    rivals = [name for name in rows if name not in OURS]
    best = {
        max((name for name in rivals if budget in rows[name]), key=lambda name: rows[name][budget].value)
        for budget in budgets
    }
    front = (*OURS, *sorted(best, reverse=True), BASELINE)  # ToMe comes first and has one colour on both beds
    back = [name for name in rows if name not in front]
    lines = tuple(Line(name, tuple(rows[name].items()), name in back) for name in (*back, *front))
    subtitle = (
        f"Bars: 95 % intervals. Coloured: CoViST and the best rival at each budget. Grey: {len(back)} other rows."
    )
    return Drawing(title, subtitle, budgets, lines)


def _adaptive(title: str) -> Drawing:
    """A level of coverage and the fixed budget of as many tokens, from the table of docs/max.md."""
    _, rows = table("max.md", "## Budgets that follow the image")
    follow, fixed = [], []
    for _, tokens, auto, equal, *_ in rows:
        if (own := measured(auto)) and (other := measured(equal)):
            follow.append((float(tokens), own))
            fixed.append((float(round(float(tokens))), other))
    lines = (Line("auto", tuple(follow[::-1])), Line("fixed", tuple(fixed[::-1])))
    budgets = tuple(int(tokens) for tokens, _ in fixed[::-1])
    return Drawing(title, "Bars: 95 % intervals. covist-max, first test bed, 576 tokens.", budgets, lines)


def draw(drawing: Drawing, theme: Theme) -> Figure:
    figure = Figure(figsize=SIZE, facecolor=theme.background)
    axes = figure.add_axes(PLOT, facecolor=theme.background)
    axes.axhline(100, color=theme.faint, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    colours = iter((*theme.lines, theme.ink))
    labelled = []
    for line in drawing.lines:
        colour = theme.faint if line.grey else theme.soft if line.name == BASELINE else next(colours)
        _draw_line(axes, line, colour, theme.background)
        if not line.grey:
            labelled.append((line, colour))
    _finish(axes, drawing.budgets, theme)
    _label(axes, labelled)
    figure.text(PLOT[0], 0.945, drawing.title, fontsize=13, weight="bold", color=theme.ink)
    figure.text(PLOT[0], 0.9, drawing.subtitle, fontsize=9, color=theme.soft)
    return figure


def _draw_line(axes: Axes, line: Line, colour: str, background: str) -> None:
    tokens = [place for place, _ in line.points]
    if line.grey:
        axes.plot(tokens, [point.value for _, point in line.points], color=colour, linewidth=0.8, alpha=0.5, zorder=2)
        return
    value, low, high = np.array([point for _, point in line.points]).T
    axes.errorbar(
        tokens,
        value,
        (value - low, high - value),
        color=colour,
        marker="o",
        markersize=5.5,
        markeredgecolor=background,
        markeredgewidth=0.7,
        linewidth=2.2 if line.name == OURS[0] else 1.6,
        linestyle="--" if line.name == BASELINE else "-",
        elinewidth=0.9,
        zorder=4 if line.name in OURS else 3,
    )


def _finish(axes: Axes, budgets: Sequence[int], theme: Theme) -> None:
    """Tokens fall to the right: that is where methods part, and where their labels stand."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(max(budgets) * 1.06, min(budgets) / 1.03)
    axes.set_xticks(budgets, labels=[str(budget) for budget in budgets])
    axes.minorticks_off()
    axes.set_xlabel("visual tokens per image", color=theme.ink, fontsize=9.5)
    axes.set_ylabel("retention (%)", color=theme.ink, fontsize=9.5)
    axes.tick_params(colors=theme.ink, labelsize=9, length=3)
    axes.grid(color=theme.faint, alpha=0.25, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)


def _label(axes: Axes, lines: Sequence[tuple[Line, str]]) -> None:
    """A name beside the end of each line, in its colour; names that would overlap move apart."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)  # labels must not move it
    ends = [line.points[-1][1].value for line, _ in lines]
    inches = SIZE[1] * PLOT[3]
    beside = axes.get_yaxis_transform()  # x in widths of the axes, y in percent
    for (line, colour), end, place in zip(
        lines, ends, spread(ends, LABEL * (high - low) / inches, low, high), strict=True
    ):
        axes.plot([1.0, 1.03], [end, place], transform=beside, clip_on=False, color=colour, linewidth=0.7)
        weight = "bold" if line.name in OURS else "normal"
        axes.text(
            1.04, place, f"{line.name}  {end}", transform=beside, color=colour, weight=weight, fontsize=9, va="center"
        )


def drawn_from(path: Path) -> str | None:
    """The source of a figure when it was drawn."""
    return ElementTree.parse(path).findtext(f".//{DESCRIPTION}")


def path_of(name: str, theme: str) -> Path:
    return FIGURES / f"{name}-{theme}.svg"


def main() -> None:
    for name, drawing in drawings().items():
        for theme, colours in THEMES.items():
            with rc_context({"svg.hashsalt": "covist"}):  # equal figures make equal files
                metadata = {"Date": None, "Description": drawing.source}
                draw(drawing, colours).savefig(path_of(name, theme), facecolor=colours.background, metadata=metadata)


if __name__ == "__main__":
    main()
