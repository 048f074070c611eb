"""Whole figures: what compression did to one image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from covist.report.stages import ImageReport
from covist.units import counted
from covist.viz.layout import View, owners, rebuilt
from covist.viz.maps import evidence_maps
from covist.viz.panels import (
    discarded_style,
    show_image,
    show_map,
    show_rebuilt,
    show_regions,
    show_representatives,
)
from covist.viz.sheet import GAP, LEGEND, MARGIN, TITLE, WIDTH, Sheet, add_legend, disc, thread
from covist.viz.theme import LIGHT, Theme
from covist.viz.weights import WeightScale

HEADING, CAPTION = 0.3, 0.36  # inches above a row, below maps
TALLEST = 3.75  # inches of a panel, unless it shares its column with more than one other view


def draw_report(
    image: ImageReport, views: list[View], title: str = "", subtitle: str = "", theme: Theme = LIGHT
) -> Figure:
    """Draw the image and its evidence maps, and below them the representatives of every stage and the rebuilt image.

    Hatched areas were discarded: no representative stands for them. If a method has no evidence maps, the image is
    drawn beside its representatives.

    image: what was kept of it, from `Report.images`
    views: what to show of the image, from `seen_views`
    theme: `covist.viz.LIGHT` or `covist.viz.DARK`

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model(**inputs)
    >>> seen = handle.report.images[0]
    >>> figure = covist.viz.draw_report(seen, covist.viz.seen_views(seen), "what was kept")
    >>> [axes.get_title() for axes in figure.axes][0]
    'what the encoder sees'
    """
    maps = evidence_maps(image)
    stages = len(image.stages)
    regions = owners(image, 0) if stages == 1 else None  # several stages fill the row by themselves
    panels = [1 + stages, 1 + stages] if stages > 1 else [3 + (regions is not None)]
    if maps:
        panels = [1 + len(maps)] + [count - 1 for count in panels]
    row, column = (1, 0) if maps else (0, 1)
    sheet = partial(Sheet, title=title, subtitle=subtitle, theme=theme)
    canvas = _Canvas(views, panels, sheet, captioned=any(shown.caption for shown in maps))
    _draw_seen(canvas, views)
    for number, view in enumerate(views):
        for place, shown in enumerate(maps, start=1):
            heading, caption = (shown.title if number == 0 else ""), (shown.caption if view is views[-1] else "")
            show_map(canvas.axes(0, number, place), view, shown.values, heading, caption, theme)
    _draw_stages(canvas, image, views, row, column)
    if regions is not None:
        _draw_regions(canvas, image, views, regions, row, column + 1)
    _draw_rebuilt(canvas, image, views, *((row + 1, column) if stages > 1 else (row, panels[row] - 1)))
    return canvas.sheet.figure


def draw_overlay(
    image: ImageReport, views: list[View], title: str = "", subtitle: str = "", theme: Theme = LIGHT
) -> Figure:
    """Draw only the representatives on the image, stage by stage; the parameters are those of `draw_report`.

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model(**inputs)
    >>> seen = handle.report.images[0]
    >>> figure = covist.viz.draw_overlay(seen, covist.viz.seen_views(seen))
    >>> [axes.get_title() for axes in figure.axes if axes.get_title()]
    ['what the encoder sees', 'layers 0-7: 64 representatives']
    """
    canvas = _Canvas(views, [1 + len(image.stages)], partial(Sheet, title=title, subtitle=subtitle, theme=theme))
    _draw_seen(canvas, views)
    _draw_stages(canvas, image, views, row=0, first_column=1)
    return canvas.sheet.figure


class _Canvas:
    """Places panels: blocks of rows, with one row per view in each block and panels of equal width in a row.

    A panel is centred in its equal share of the row, so that narrow panels leave room for their headings.
    """

    def __init__(self, views: list[View], columns: list[int], sheet: Callable[[float], Sheet], captioned: bool = False):
        """`sheet` makes a sheet of a given height; `captioned` leaves room for captions below the first block."""
        self._views = views
        self._shares = [(WIDTH - 2 * MARGIN - (count - 1) * GAP) / count for count in columns]
        self._widths = [self._panel_width(share) for share in self._shares]
        heights = [sum(self._height(view, width) + HEADING for view in views) for width in self._widths]
        heights[0] += CAPTION if captioned else 0
        self._tops = [TITLE + sum(heights[:block]) for block in range(len(columns))]
        self.sheet = sheet(TITLE + sum(heights) + LEGEND)

    def _panel_width(self, share: float) -> float:
        """The share of the row, or less if a panel would become too tall."""
        tallest = TALLEST * min(1, 2 / len(self._views))
        return min(share, *(tallest * view.columns / view.rows for view in self._views))

    def _height(self, view: View, width: float) -> float:
        return width * view.rows / view.columns

    @property
    def theme(self) -> Theme:
        return self.sheet.theme

    def axes(self, block: int, view: int, column: int) -> Axes:
        width = self._widths[block]
        above = sum(self._height(other, width) + HEADING for other in self._views[:view])
        height = self._height(self._views[view], width)
        top = self._tops[block] + above + HEADING
        share = self._shares[block]
        left = MARGIN + column * (share + GAP) + (share - width) / 2
        return self.sheet.axes(left, top, width, height)

    def cell_points(self, block: int, view: int) -> float:
        """Side of a token's cell in points."""
        return 72 * self._widths[block] / self._views[view].columns


def _draw_seen(canvas: _Canvas, views: list[View]) -> None:
    for number, (view, name) in enumerate(zip(views, _view_names(views), strict=True)):
        show_image(canvas.axes(0, number, 0), view, name, canvas.theme)


def _view_names(views: list[View]) -> list[str]:
    """Of two views, the finer one consists of tiles; of more views, each is a tile and the last is the whole image."""
    if len(views) == 1:
        return ["what the encoder sees"]
    if len(views) == 2:
        first, second = (max(view.rows, view.columns) for view in views)
        return ["base view", "tiles"] if first < second else ["tiles", "base view"]
    return [*(f"tile {number}" for number in range(1, len(views))), "whole image"]


def _draw_stages(canvas: _Canvas, image: ImageReport, views: list[View], row: int, first_column: int) -> None:
    """One panel per stage and view, and the legend that explains them."""
    theme = canvas.theme
    scale = WeightScale(image.largest_weight, theme)
    for place, stage in enumerate(image.stages):
        kept, weights = stage.kept.numpy(), stage.weights.float().numpy()
        owner = owners(image, place)
        title = image.describe_stage(place).replace("token", "representative")
        for number, view in enumerate(views):
            axes, cell = canvas.axes(row, number, first_column + place), canvas.cell_points(row, number)
            heading = title if number == 0 else ""
            show_representatives(axes, view, kept, weights, owner, scale, cell, heading, theme)
    handles: list[Artist] = [disc(weight, scale, canvas.cell_points(row, 0), theme) for weight in scale.examples]
    if len(image.kept) < image.tokens:
        gone = Patch(**discarded_style(theme), label="discarded")
        handles.append(thread(theme) if image.assignment is not None else gone)
    add_legend(canvas.sheet, scale, handles)


def _draw_regions(
    canvas: _Canvas, image: ImageReport, views: list[View], owner: np.ndarray, row: int, column: int
) -> None:
    for number, view in enumerate(views):
        heading = "what each one stands for" if number == 0 else ""
        show_regions(canvas.axes(row, number, column), view, owner, image.kept.numpy(), heading, canvas.theme)


def _draw_rebuilt(canvas: _Canvas, image: ImageReport, views: list[View], row: int, first_column: int) -> None:
    """The image rebuilt from each stage's representatives."""
    for place, stage in enumerate(image.stages):
        kept, owner = stage.kept.numpy(), owners(image, place)
        discarded = image.discarded_at(place).numpy()
        painted = rebuilt(views, owner, kept)
        for number, view in enumerate(views):
            heading = f"rebuilt from {counted(len(kept), 'representative')}" if number == 0 else ""
            axes = canvas.axes(row, number, first_column + place)
            show_rebuilt(axes, view, painted[number], discarded, heading, canvas.theme)
