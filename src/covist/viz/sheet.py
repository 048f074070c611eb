"""The sheet for figures: positions in inches from the top left, a title, and a legend at the bottom."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from covist.viz.theme import LIGHT, Theme
from covist.viz.weights import WeightScale

WIDTH, MARGIN, GAP, BAR = 12.0, 0.25, 0.14, 2.6  # inches: figure, margin, between panels, colour bar
TITLE, LEGEND = 0.62, 0.72  # inches at the top, at the bottom


class Sheet:
    """A figure, usually of the common width, with a title and a subtitle."""

    def __init__(self, height: float, title: str = "", subtitle: str = "", theme: Theme = LIGHT, width: float = WIDTH):
        self.height, self.theme, self.width = height, theme, width
        self.figure = Figure(figsize=(width, height), facecolor=theme.background)
        self.write(title, 0.24, fontsize=13, weight="bold")
        self.write(subtitle, 0.48, fontsize=9.5)

    def write(self, text: str, below: float, left: float = MARGIN, **style: Any) -> None:
        """A line of text, `below` inches from the top. Dollar signs in a question do not begin a formula."""
        shown = {"color": self.theme.ink, "va": "center", "parse_math": False, **style}
        self.figure.text(left / self.width, 1 - below / self.height, text, **shown)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        place = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(place, facecolor=self.theme.background)


def add_legend(sheet: Sheet, scale: WeightScale, handles: list[Artist]) -> None:
    """Explain discs, lines, hatching and colours."""
    figure, height, ink = sheet.figure, sheet.height, sheet.theme.ink
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(MARGIN / WIDTH, 0.36 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        handletextpad=0.6,
        columnspacing=1.6,
        borderpad=0,
        labelcolor=ink,
    )
    if len(scale.examples) > 1:
        left, width = WIDTH - MARGIN - BAR, BAR
        bar_axes = figure.add_axes((left / WIDTH, 0.36 / height, width / WIDTH, 0.12 / height))
        colours = ScalarMappable(Normalize(1.0, scale.largest), scale.theme.weight_colours)
        bar = figure.colorbar(colours, cax=bar_axes, orientation="horizontal")
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, colors=ink, length=2)
        figure.text((left - 0.1) / WIDTH, 0.42 / height, "weight", fontsize=9, color=ink, ha="right", va="center")


def thread(theme: Theme) -> Line2D:
    """The legend entry of the lines between tokens."""
    return Line2D([], [], color=theme.faint, linewidth=1.2, label="a token and the representative that stands for it")


def disc(weight: float, scale: WeightScale, cell_points: float, theme: Theme) -> Line2D:
    """A legend entry: a disc as drawn in cells of `cell_points` points."""
    weights = np.array([weight])
    return Line2D(
        [],
        [],
        linestyle="",
        marker="o",
        markersize=float(np.sqrt(scale.areas(weights, cell_points))[0]),
        markerfacecolor=tuple(scale.colours(weights)[0]),
        markeredgecolor=theme.rim,
        label=f"weight {weight:g}",
    )
