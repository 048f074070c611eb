"""The strip of a prompt with many images: each of them with its representatives, and how many tokens it has now."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from covist.grid import evenly
from covist.report.stages import ImageReport
from covist.units import counted, number
from covist.viz.layout import View
from covist.viz.panels import show_representatives
from covist.viz.sheet import GAP, LEGEND, MARGIN, TITLE, WIDTH, Sheet, add_legend, disc
from covist.viz.theme import LIGHT, Theme
from covist.viz.weights import WeightScale

MOST, COLUMNS = 64, 8  # images of a strip, of which more are sampled evenly; images beside each other
SIDE = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) / COLUMNS  # inches of an image
HEADING, CHART, CHART_GAP, SCALE = 0.3, 1.0, 0.45, 0.5  # inches above an image, of the chart, above it, left of it


def draw_strip(
    images: Sequence[ImageReport],
    views: Sequence[list[View]],
    title: str = "",
    subtitle: str = "",
    theme: Theme = LIGHT,
) -> Figure:
    """Draw the images of a prompt, the oldest first, with the tokens that each of them keeps; a chart compares them.

    images: what was kept of them, from `Report.visuals`
    views: what to show of each, from `seen_views`; the first view of an image and the first frame of a video are drawn
    theme: `covist.viz.LIGHT` or `covist.viz.DARK`

    >>> import covist, torch
    >>> from covist.report.stages import ImageReport, StageReport
    >>> from covist.grid import Grid
    >>> kept = torch.tensor([0, 5, 6])
    >>> stage = StageReport(
    ...     depth=0, withheld=0.0, kept=kept, positions=kept, weights=torch.ones(3), assignment=None, maps={}
    ... )
    >>> image = ImageReport(0, Grid(((2, 4),)), 8, 0, 3, (3,) * 8, (3,) * 8, (stage,))
    >>> figure = covist.viz.draw_strip([image, image], [covist.viz.seen_views(image)] * 2, "two images")
    >>> figure.axes[0].get_title()
    '1: 3 of 8'
    """
    shown = evenly(len(images), MOST)
    below = TITLE + -(-len(shown) // COLUMNS) * (HEADING + SIDE)
    sheet = Sheet(below + CHART_GAP + CHART + 0.3 + LEGEND, title, subtitle, theme)
    scale = WeightScale(max(float(image.weights.max()) for image in images), theme)
    for place, which in enumerate(shown):
        heading = f"{which + 1}: {number(images[which].mean_tokens)} of {images[which].tokens}"
        _draw_image(sheet, place, images[which], views[which][0], scale, heading)
    _draw_chart(sheet, below + CHART_GAP, images)
    cell = _cell(views[shown[0]][0])
    add_legend(sheet, scale, [disc(weight, scale, cell, theme) for weight in scale.examples])
    return sheet.figure


def _draw_image(sheet: Sheet, place: int, image: ImageReport, view: View, scale: WeightScale, heading: str) -> None:
    """An image at a place of the strip, without threads, for which it is too small."""
    line, column = divmod(place, COLUMNS)
    axes = sheet.axes(MARGIN + column * (SIDE + GAP), TITLE + HEADING + line * (HEADING + SIDE), SIDE, SIDE)
    kept, weights = image.kept.numpy(), image.weights.float().numpy()
    show_representatives(axes, view, kept, weights, None, scale, _cell(view), heading, sheet.theme)


def _cell(view: View) -> float:
    """Points of a token's cell."""
    return 72 * SIDE / max(view.rows, view.columns)


def _draw_chart(sheet: Sheet, top: float, images: Sequence[ImageReport]) -> None:
    """A bar for the tokens of every image."""
    theme, count = sheet.theme, len(images)
    axes = sheet.axes(MARGIN + SCALE, top, WIDTH - 2 * MARGIN - SCALE, CHART)
    tokens = [image.mean_tokens for image in images]
    axes.bar(range(count), tokens, color=theme.bars[-1])
    ticks = evenly(count, 24)
    axes.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    axes.set_xlim(-0.5, count - 0.5)
    axes.tick_params(labelsize=8, colors=theme.soft, length=2)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    heading = f"visual tokens of each image: {number(sum(tokens))} of {counted(sum(i.tokens for i in images), 'token')}"
    axes.set_title(heading, fontsize=9, color=theme.ink, loc="left", pad=5)
