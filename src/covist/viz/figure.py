"""Whole figures: what a compression did with one picture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from covist.contract.stages import ImageReport
from covist.errors import CovistError
from covist.viz.layout import View, owners, rebuilt, tokens_before
from covist.viz.panels import (
    FAINT,
    INK,
    WeightScale,
    show_map,
    show_picture,
    show_regions,
    show_representatives,
)

WIDTH, MARGIN, GAP, BAR = 12.0, 0.25, 0.14, 2.6  # inches of the figure, its rim, between panels, of the colour bar
TITLE, HEADING, LEGEND = 0.62, 0.3, 0.72  # inches above all, above each row, below all
TALLEST = 3.75  # inches of a panel
MAP_NAMES = ("attention", "distinctiveness", "instruction", "combined")
FORMATS = (".png", ".svg")


def draw_report(image: ImageReport, views: list[View], title: str = "", subtitle: str = "") -> Figure:
    """The picture and its evidence maps above; the representatives of every stage and what became of it below.

    Without evidence maps (a method may have none) everything stands in one row.
    """
    maps = _evidence_maps(image)
    stages = len(image.stages)
    owner = owners(image, stages - 1)
    regions = owner if stages == 1 else None  # several stages fill the row by themselves
    panels = stages + (regions is not None) + 1
    canvas = _Canvas(views, [1 + len(maps), panels] if maps else [1 + panels], title, subtitle)
    row, column = (1, 0) if maps else (0, 1)
    _draw_seen(canvas, views)
    for number, view in enumerate(views):
        for place, (name, values) in enumerate(maps.items(), start=1):
            show_map(canvas.axes(0, number, place), view, values, name if number == 0 else "")
    _draw_stages(canvas, image, views, row, column)
    kept = image.stages[-1].indices.numpy()
    painted = rebuilt(views, owner, kept)
    for number, view in enumerate(views):
        if regions is not None:
            heading = "what each one stands for" if number == 0 else ""
            show_regions(canvas.axes(row, number, column + stages), view, regions, kept, heading)
        heading = f"rebuilt from {_counted(len(kept))}" if number == 0 else ""
        show_picture(canvas.axes(row, number, column + panels - 1), view, heading, painted[number])
    return canvas.figure


def draw_overlay(image: ImageReport, views: list[View], title: str = "", subtitle: str = "") -> Figure:
    """Only the representatives on the picture, stage by stage."""
    canvas = _Canvas(views, [1 + len(image.stages)], title, subtitle)
    _draw_seen(canvas, views)
    _draw_stages(canvas, image, views, row=0, first_column=1)
    return canvas.figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write PNG or SVG, by the name's ending."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise CovistError(f"cannot write {path}: its name must end in {' or '.join(FORMATS)}")
    try:
        with warnings.catch_warnings():
            # Letters of a question that the font lacks become boxes; a warning for each of them helps nobody.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(path, dpi=150, facecolor="white")
    except OSError as error:
        raise CovistError(f"cannot write {path}: {error.strerror or error}") from None


class _Canvas:
    """Places panels: blocks of rows, in each block one row per view, panels of a row equally wide.

    A panel stands in the middle of its equal share of the row, so that narrow panels leave room for their headings.
    """

    def __init__(self, views: list[View], columns: list[int], title: str, subtitle: str):
        self._views = views
        self._shares = [(WIDTH - 2 * MARGIN - (count - 1) * GAP) / count for count in columns]
        self._widths = [self._panel_width(share) for share in self._shares]
        heights = [sum(self._height(view, width) + HEADING for view in views) for width in self._widths]
        self._tops = [TITLE + sum(heights[:block]) for block in range(len(columns))]
        self.height = TITLE + sum(heights) + LEGEND
        self.figure = Figure(figsize=(WIDTH, self.height))
        self._write(title, 0.24, fontsize=13, weight="bold")
        self._write(subtitle, 0.48, fontsize=9.5)

    def _write(self, text: str, below: float, **style: Any) -> None:
        """A line of text that many inches below the top; a question may hold dollars, which are no formula."""
        place = MARGIN / WIDTH, 1 - below / self.height
        self.figure.text(*place, text, color=INK, va="center", parse_math=False, **style)

    def _panel_width(self, share: float) -> float:
        """As wide as its share of the row, unless a panel would become too tall."""
        return min(share, *(TALLEST * view.columns / view.rows for view in self._views))

    def _height(self, view: View, width: float) -> float:
        return width * view.rows / view.columns

    def axes(self, block: int, view: int, column: int) -> Axes:
        width = self._widths[block]
        above = sum(self._height(other, width) + HEADING for other in self._views[:view])
        height = self._height(self._views[view], width)
        top = self._tops[block] + above + HEADING
        share = self._shares[block]
        left = MARGIN + column * (share + GAP) + (share - width) / 2
        return self.figure.add_axes(
            (left / WIDTH, 1 - (top + height) / self.height, width / WIDTH, height / self.height)
        )

    def cell_points(self, block: int, view: int) -> float:
        """Side of a token's cell in points."""
        return 72 * self._widths[block] / self._views[view].columns


def _draw_stages(canvas: _Canvas, image: ImageReport, views: list[View], row: int, first_column: int) -> None:
    """One panel per stage and view, and the legend that explains them."""
    scale = WeightScale(max(float(stage.weights.max()) for stage in image.stages))
    ends = [later.depth for later in image.stages[1:]] + [len(image.tokens_per_layer)]
    for place, stage in enumerate(image.stages):
        kept, weights = stage.indices.numpy(), stage.weights.float().numpy()
        owner = owners(image, place)
        first, last = stage.depth, ends[place] - 1
        title = f"layer{f' {first}' if first == last else f's {first}-{last}'}: {_counted(len(kept))}"
        for number, view in enumerate(views):
            axes, cell = canvas.axes(row, number, first_column + place), canvas.cell_points(row, number)
            heading = title if number == 0 else ""
            show_representatives(axes, view, kept, weights, owner, scale, cell, heading)
    threads = owner is not None and len(kept) < image.tokens
    _add_legend(canvas, scale, canvas.cell_points(row, 0), threads)


def _counted(representatives: int) -> str:
    return "1 representative" if representatives == 1 else f"{representatives} representatives"


def _evidence_maps(image: ImageReport) -> dict[str, np.ndarray]:
    """Title -> values over all original tokens [N], nan where a token was gone; constant maps say nothing."""
    found = {}
    for number, stage in enumerate(image.stages):
        names = sorted(stage.maps, key=lambda name: (MAP_NAMES + (name,)).index(name))
        for name in names:
            values = stage.maps[name].float().numpy()
            if np.ptp(values) < 1e-9:
                continue
            whole = np.full(image.tokens, np.nan)
            whole[tokens_before(image, number)] = values
            if name == "combined":
                name = "evidence" if number else "combined evidence"
            found[f"{name}, layer {stage.depth}" if number else name] = whole
    return found


def _draw_seen(canvas: _Canvas, views: list[View]) -> None:
    names = ["what the encoder sees"] if len(views) == 1 else ["base view", "tiles"]
    for number, view in enumerate(views):
        show_picture(canvas.axes(0, number, 0), view, names[number])


def _add_legend(canvas: _Canvas, scale: WeightScale, cell_points: float, threads: bool) -> None:
    """What discs, threads and colours mean."""
    figure, height = canvas.figure, canvas.height
    handles = [_disc(weight, scale, cell_points) for weight in scale.examples]
    if threads:
        handles.append(
            Line2D([], [], color=FAINT, linewidth=1.2, label="a token and the representative that stands for it")
        )
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
        labelcolor=INK,
    )
    if len(scale.examples) > 1:
        left, width = WIDTH - MARGIN - BAR, BAR
        bar_axes = figure.add_axes((left / WIDTH, 0.36 / height, width / WIDTH, 0.12 / height))
        bar = figure.colorbar(scale.mappable, cax=bar_axes, orientation="horizontal")
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, colors=INK, length=2)
        figure.text((left - 0.1) / WIDTH, 0.42 / height, "weight", fontsize=9, color=INK, ha="right", va="center")


def _disc(weight: float, scale: WeightScale, cell_points: float) -> Line2D:
    weights = np.array([weight])
    return Line2D(
        [],
        [],
        linestyle="",
        marker="o",
        markersize=float(np.sqrt(scale.areas(weights, cell_points))[0]),
        markerfacecolor=to_hex(scale.colours(weights)[0]),
        markeredgecolor="white",
        label=f"weight {weight:g}",
    )
