"""Retention against budget, one labelled line per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covist.budget import Budget, Coverage
from covist.methods.grammar import VANILLA
from covist.viz import save_figure
from covist.viz.theme import LIGHT

if TYPE_CHECKING:
    from covist.eval.results import Results, Score

OURS = "covist"
COLOURS, INK, SOFT, FAINT = LIGHT.lines, LIGHT.ink, LIGHT.soft, LIGHT.faint
PLOT, LEFT, BOTTOM, TOP = 5.6, 0.7, 0.6, 0.75  # inches: width of the axes, and what is left around them
LABEL, LETTER = 0.17, 0.076  # inches of a line and of a letter of the labels
REMARK, REMARK_LETTER = 0.15, 0.072  # and of the remarks
OFFSET = 1.09  # where labels begin, in widths of the axes


@dataclass(frozen=True)
class _Line:
    """A method over its budgets, in the order of the axis: from many tokens to few."""

    method: str
    scores: list[Score]
    colour: str | None  # None for the methods in the background

    def label(self, least: Budget | None) -> str:
        """The name, the last retention, and the last budget if it is not the smallest of the plot."""
        end = self.scores[-1]
        named = f"{self.method}  {end.retention:.1f}"
        if not end.reached:
            return f"{named} at {end.counted_tokens:.0f} tokens"
        return named + (f" at {end.budget}" if end.budget != least else "")


def plot_retention(results: Results, path: str | Path) -> None:
    """One line per method with intervals, over the tokens that it cached; CoViST in colour, others in grey.

    Published counts above their budget are hollow points at their layer mean. Budgets that a method cannot reach have
    no point. Remarks below the title list both.
    """
    lines = _lines(results.scores)
    places = _places(lines)
    least = min(places, key=lambda budget: places[budget], default=None)
    labels = [line.label(least) for line in lines]
    width = LEFT + PLOT * OFFSET + max(1.2, LETTER * max(map(len, labels), default=0) + 0.15)
    height = max(3.4, 1.15 * LABEL * (len(lines) + 1))
    remarks = _unreached(results.scores, letters=int((width - LEFT) / REMARK_LETTER))
    whole = TOP + REMARK * len(remarks) + height + BOTTOM
    figure = Figure(figsize=(width, whole), facecolor=LIGHT.background)
    axes = figure.add_axes((LEFT / width, BOTTOM / whole, PLOT / width, height / whole))
    for line in lines:
        _draw(axes, line)
    axes.axhline(100, color=FAINT, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    counted = [score.counted_tokens for line in lines for score in line.scores]
    _finish(axes, places, [*counted, *places.values()], results.measure)
    _label(axes, lines, labels, height)
    asked = f"{results.about}; bars are 95% intervals"
    place = LEFT / width
    figure.text(
        place,
        1 - 0.28 / whole,
        f"{results.measure.capitalize()} on {results.suite}",
        fontsize=13,
        weight="bold",
        color=INK,
    )
    figure.text(place, 1 - 0.53 / whole, asked, fontsize=9.5, color=INK)
    figure.text(place, 1 - 0.62 / whole, "\n".join(remarks), fontsize=8, color=SOFT, va="top", linespacing=1.3)
    save_figure(figure, path)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """Positions at least `gap` apart, in the order of `wanted`, nearest to it by least squares.

    They lie in [low, high] if they fit.
    """
    from scipy.optimize import isotonic_regression

    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(order))
    apart = isotonic_regression(np.asarray(wanted, dtype=float)[order] - steps).x + steps
    apart = np.maximum(np.minimum(apart, high - steps[::-1]), low + steps)
    places = np.empty(len(order))
    places[order] = apart
    return places


def _unreached(scores: Sequence[Score], letters: int) -> list[str]:
    """Which methods exceed which budgets, wrapped to lines of so many letters."""
    missed: dict[str, list[str]] = {}
    for score in scores:
        if not score.reached:
            kept = f"{score.counted_tokens:.1f} tokens"
            remark = f"not reachable at {score.budget}, where {kept} are the least"
            if score.nominal:
                remark = f"hollow: published counts for {score.budget}, {kept}"
            missed.setdefault(remark, []).append(score.method)
    remarks = [f"{remark}: {', '.join(names)}" for remark, names in missed.items()]
    return [line for remark in remarks for line in wrap(remark, letters)]


def _lines(scores: Sequence[Score]) -> list[_Line]:
    """The methods in the background first, so that CoViST lies on top."""
    found: dict[str, list[Score]] = {}
    for score in scores:
        if score.method != VANILLA and (score.reached or score.nominal) and math.isfinite(score.retention):
            found.setdefault(_line_of(score), []).append(score)
    ours = [method for method in found if method.startswith(OURS)]
    colours = {method: COLOURS[number % len(COLOURS)] for number, method in enumerate(ours)}
    names = sorted(found, key=lambda method: method in colours)
    falling = {name: sorted(found[name], key=lambda score: -score.counted_tokens) for name in names}
    return [_Line(name, falling[name], colours.get(name)) for name in names]


def _line_of(score: Score) -> str:
    """The line that a score belongs to: adaptive budgets have their own."""
    if score.budget.says_count:
        return score.method
    return f"{score.method} {'auto' if isinstance(score.budget, Coverage) else 'total'}"


def _draw(axes: Axes, line: _Line) -> None:
    """Draw a line; all its points are of one kind, because published counts of a method have their own line."""
    hollow = not all(score.reached for score in line.scores)
    retention = np.array([score.retention for score in line.scores])
    ends = np.array([score.retention_interval for score in line.scores])  # [budgets, 2]
    axes.errorbar(
        [score.counted_tokens for score in line.scores],
        retention,
        np.abs(ends - retention[:, None]).T,
        color=line.colour or FAINT,
        marker="o",
        markersize=5 if line.colour else 3,
        markerfacecolor="white" if hollow else None,
        markeredgecolor=(line.colour or FAINT) if hollow else "white",
        markeredgewidth=0.6,
        linewidth=2 if line.colour else 0.9,
        elinewidth=1 if line.colour else 0.5,
        zorder=3 if line.colour else 2,
    )


def _places(lines: Sequence[_Line]) -> dict[Budget, float]:
    """The position of each budget on the axis: its count, or the mean tokens that a share or a count per frame gave."""
    places: dict[Budget, float] = {}
    for score in (score for line in lines for score in line.scores):
        if score.budget.says_count:  # adaptive budgets have no fixed position
            places.setdefault(score.budget, score.target)
    return dict(sorted(places.items(), key=lambda place: place[1]))


def _finish(axes: Axes, budgets: dict[Budget, float], shown: list[float], measure: str) -> None:
    """Axes from many tokens to few, so that the lines separate next to their labels."""
    if budgets:
        axes.set_xscale("log", base=2)
        axes.set_xlim(max(shown) * 1.1, min(shown) / 1.1)
        axes.set_xticks(list(budgets.values()), labels=[str(budget) for budget in budgets])
        axes.minorticks_off()
    axes.set_xlabel("visual tokens per image, layer mean (fewer to the right)", color=INK, fontsize=9.5)
    axes.set_ylabel(f"{measure} (%)", color=INK, fontsize=9.5)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.grid(color=FAINT, alpha=0.25, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)


def _label(axes: Axes, lines: list[_Line], labels: list[str], height: float) -> None:
    """A name at the end of each line; names that would overlap move apart and are connected to their lines."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)  # labels must not move it
    edge = axes.get_xlim()[1]
    names: list[tuple[str, float, float, str | None]] = [("uncompressed  100", edge, 100.0, None)]
    for line, label in zip(lines, labels, strict=True):
        end = line.scores[-1]
        names.append((label, end.counted_tokens, end.retention, line.colour))
    places = spread([y for _, _, y, _ in names], LABEL * (high - low) / height, low, high)
    beside = axes.get_yaxis_transform()  # x in widths of the axes, y in percent
    for (text, x, y, colour), place in zip(names, places, strict=True):
        tie: dict[str, Any] = {"color": colour or FAINT, "linewidth": 0.5, "alpha": 0.75, "zorder": 1}
        axes.plot([x, edge], [y, y], **tie)
        axes.plot([1, OFFSET - 0.012], [y, place], transform=beside, clip_on=False, **tie)
        weight = "bold" if colour else "normal"
        name = axes.text(OFFSET, place, text, transform=beside, color=colour or SOFT, weight=weight, fontsize=8.5)
        name.set(va="center", parse_math=False)
