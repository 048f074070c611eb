"""What the plates have in common: their size, and the legend at the top."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covist.report.stages import ImageReport
from covist.viz.layout import View, owners
from covist.viz.panels import show_representatives
from covist.viz.sheet import Sheet, disc, thread
from covist.viz.weights import WeightScale

WIDTH, EDGE, GAP = 8.0, 0.08, 0.14  # inches: text of 9 points can be read on a page 700 pixels wide
LINE = 0.26  # inches of a line of text
TEXT, BOLD = 9, 10  # points


def explain(sheet: Sheet, top: float, left: float, title: str, lines: Sequence[str]) -> None:
    """A title, lines below it, and what discs and threads mean."""
    theme = sheet.theme
    sheet.write(title, top + LINE / 2, left, fontsize=11, weight="bold")
    for number, line in enumerate(lines, start=1):
        sheet.write(line, top + LINE * (number + 0.5), left, fontsize=TEXT, color=theme.soft)
    scale = WeightScale(9.0, theme)
    light, heavy, tie = disc(1.0, scale, 9.0, theme), disc(9.0, scale, 9.0, theme), thread(theme)
    light.set_label("a token that was kept and counts as one")
    heavy.set_label("the one that counts most; size and colour show how much")
    sheet.figure.legend(
        handles=[light, heavy, tie],
        loc="upper left",
        bbox_to_anchor=(left / WIDTH, 1 - (top + LINE * (len(lines) + 1.4)) / sheet.height),
        frameon=False,
        fontsize=TEXT,
        labelcolor=theme.soft,
        labelspacing=0.7,
        borderpad=0,
        borderaxespad=0,
    )


class Representatives:
    """The tokens that a report keeps to the end, ready to be shown on its views."""

    def __init__(self, report: ImageReport, sheet: Sheet):
        last = len(report.stages) - 1
        self._theme, self._owner = sheet.theme, owners(report, last)
        self._kept: np.ndarray = report.kept.numpy()
        self._weights = report.weights.float().numpy()
        self._scale = WeightScale(float(self._weights.max(initial=1.0)), sheet.theme)
        self._sheet = sheet

    def show(self, view: View, left: float, top: float, width: float) -> None:
        """On a view of so many inches."""
        axes = self._sheet.axes(left, top, width, width * view.rows / view.columns)
        cell = 72 * width / view.columns  # points
        show_representatives(axes, view, self._kept, self._weights, self._owner, self._scale, cell, theme=self._theme)
