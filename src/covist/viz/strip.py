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
    width = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) / COLUMNS
    lines = -(-len(shown) // COLUMNS)
    below = TITLE + lines * (HEADING + width)
    sheet = Sheet(below + CHART_GAP + CHART + 0.3 + LEGEND, title, subtitle, theme)
    scale = WeightScale(max(float(image.weights.max()) for image in images), theme)
    cell = 0.0
    for place, which in enumerate(shown):
        line, column = divmod(place, COLUMNS)
        image, view = images[which], views[which][0]
        axes = sheet.axes(MARGIN + column * (width + GAP), TITLE + HEADING + line * (HEADING + width), width, width)
        cell = 72 * width / max(view.rows, view.columns)  # points
        kept, weights = image.kept.numpy(), image.weights.float().numpy()
        heading = f"{which + 1}: {number(image.mean_tokens)} of {image.tokens}"
        show_representatives(axes, view, kept, weights, None, scale, cell, heading, theme)  # too small for threads
    _draw_chart(sheet, below + CHART_GAP, images)
    add_legend(sheet, scale, [disc(weight, scale, cell, theme) for weight in scale.examples])
    return sheet.figure


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
