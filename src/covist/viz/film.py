"""The film strip of a video: what was kept in each frame, and how kept tokens, weight and coverage change over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covist.grid import evenly
from covist.report.stages import ImageReport
from covist.units import counted, number
from covist.viz.layout import View, owners
from covist.viz.panels import show_image, show_representatives
from covist.viz.sheet import GAP, LEGEND, MARGIN, TITLE, WIDTH, Sheet, add_legend, disc, thread
from covist.viz.theme import LIGHT, Theme
from covist.viz.weights import WeightScale

MOST = 16  # frames of a strip; longer videos are sampled evenly
WIDEST, NARROWEST = 4, 8  # frames beside each other
STRIPS = 6.5  # inches for all strips together, if narrower frames make that possible
HEADING, TIME, REST = 0.24, 0.23, 0.14  # inches above a strip, above a line of it, below the strip
CHART, CHART_GAP, SCALE = 0.95, 0.42, 0.5  # inches of a chart, above it, to the left for its numbers
FRAME_TICKS = 24  # frames that a chart numbers one by one


def draw_film(
    video: ImageReport,
    views: list[View],
    title: str = "",
    subtitle: str = "",
    seconds: Sequence[float] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw up to 16 evenly spaced frames of a video, and the representatives of every stage on them.

    Charts below show, for all frames, how many tokens were kept, how many tokens they count for, and, if the method
    measures it, how well they cover the frame.

    video: what was kept of it, from `Report.visuals`
    views: what to show of its frames, from `seen_views`
    seconds: the time of each frame, for the headings; by default frames are numbered from 1
    theme: `covist.viz.LIGHT` or `covist.viz.DARK`

    >>> import covist, torch
    >>> from covist.report.stages import ImageReport, StageReport
    >>> from covist.grid import Grid
    >>> kept = torch.tensor([0, 5, 9, 10, 20])
    >>> stage = StageReport(
    ...     depth=0, withheld=0.0, kept=kept, positions=kept, weights=torch.ones(5), assignment=None, maps={}
    ... )
    >>> video = ImageReport(0, Grid(((2, 4),) * 3, "frames"), 24, 0, 5, (5,) * 8, (5,) * 8, (stage,))
    >>> figure = covist.viz.draw_film(video, covist.viz.seen_views(video), "a video")
    >>> video.kept_per_frame().tolist(), figure.axes[0].get_title()
    ([2, 2, 1], '1')
    """
    shown = evenly(len(views), MOST)
    strip = _Strip(views[0], len(shown), 1 + len(video.stages))
    charts = (2 + (video.coverage_per_frame() is not None)) * (CHART_GAP + CHART) + 0.3
    sheet = Sheet(TITLE + (1 + len(video.stages)) * strip.height + charts + LEGEND, title, subtitle, theme)
    names = [f"{moment:.1f} s" for moment in seconds] if seconds else [str(place + 1) for place in range(len(views))]
    _draw_seen(sheet, strip, [views[place] for place in shown], [names[place] for place in shown], len(views))
    _draw_kept(sheet, strip, video, [views[place] for place in shown])
    top = TITLE + (1 + len(video.stages)) * strip.height
    _draw_over_time(sheet, top, video, names, "time" if seconds else "frame")
    return sheet.figure


class _Strip:
    """Places the frames of one strip: lines of equally many panels, as wide as the space for all strips allows."""

    def __init__(self, view: View, count: int, strips: int):
        self._shape = view.rows / view.columns
        for columns in range(min(WIDEST, count), min(NARROWEST, count) + 1):
            self.columns = columns
            if strips * self.height_of(count) <= STRIPS:
                break
        self.columns = -(-count // -(-count // self.columns))  # as even as the number of lines allows
        self.height = self.height_of(count)

    @property
    def width(self) -> float:
        """Inches of a frame."""
        share = (WIDTH - 2 * MARGIN - (self.columns - 1) * GAP) / self.columns
        return min(share, STRIPS / 3 / self._shape)

    def height_of(self, count: int) -> float:
        """Inches of a strip, including its headings."""
        lines = -(-count // self.columns)
        return HEADING + lines * (self.width * self._shape + TIME) + REST

    def box(self, place: int) -> tuple[float, float, float, float]:
        """Left, top, width and height of a frame in inches, from the strip's top."""
        line, column = divmod(place, self.columns)
        height = self.width * self._shape
        return MARGIN + column * (self.width + GAP), HEADING + TIME + line * (height + TIME), self.width, height


def _draw_seen(sheet: Sheet, strip: _Strip, views: list[View], names: list[str], frames: int) -> None:
    chosen = "" if len(views) == frames else f", {len(views)} of {frames}"
    sheet.write(f"what the encoder sees: {counted(frames, 'frame')}{chosen}", TITLE + HEADING / 2, fontsize=9.5)
    for place, (view, name) in enumerate(zip(views, names, strict=True)):
        left, top, width, height = strip.box(place)
        axes = sheet.axes(left, TITLE + top, width, height)
        show_image(axes, view, theme=sheet.theme)
        axes.set_title(name, fontsize=8, color=sheet.theme.soft, pad=4)


def _draw_kept(sheet: Sheet, strip: _Strip, video: ImageReport, views: list[View]) -> None:
    """One strip per stage, and the legend that explains them."""
    theme = sheet.theme
    scale = WeightScale(video.largest_weight, theme)
    cell = 72 * strip.width / views[0].columns  # points
    for stage, state in enumerate(video.stages):
        above = TITLE + (1 + stage) * strip.height
        title = video.describe_stage(stage).replace("token", "representative")
        sheet.write(title, above + HEADING / 2, fontsize=9.5)
        kept, weights, owner = state.kept.numpy(), state.weights.float().numpy(), owners(video, stage)
        per_frame = video.kept_per_frame(stage).tolist()
        for place, view in enumerate(views):
            left, top, width, height = strip.box(place)
            axes = sheet.axes(left, above + top, width, height)
            show_representatives(axes, view, kept, weights, owner, scale, cell, theme=theme)
            frame = int(video.grid.view_numbers()[view.start])
            axes.set_title(f"{per_frame[frame]} kept", fontsize=8, color=theme.soft, pad=4)
    handles: list[Artist] = [disc(weight, scale, cell, theme) for weight in scale.examples]
    if len(video.kept) < video.tokens and video.assignment is not None:
        handles.append(thread(theme))
    add_legend(sheet, scale, handles)


def _draw_over_time(sheet: Sheet, top: float, video: ImageReport, names: list[str], unit: str) -> None:
    """Charts over all frames: tokens kept in every stage, the weight of the final ones, and what they cover."""
    left, width = MARGIN + SCALE, WIDTH - 2 * MARGIN - SCALE
    covered = video.coverage_per_frame()
    tops = [top + CHART_GAP + number * (CHART + CHART_GAP) for number in range(2 if covered is None else 3)]
    charts = [sheet.axes(left, place, width, CHART) for place in tops]
    _draw_tokens(charts[0], video, sheet.theme)
    _draw_weights(charts[1], video, sheet.theme)
    if covered is not None:
        charts[2].plot(range(video.frames), 100 * covered.numpy(), color=sheet.theme.bars[-1], marker="o", markersize=3)
        charts[2].set_ylim(0, 100)
        _finish(
            charts[2],
            video,
            "coverage per frame: how well the kept tokens represent those of the frame, %",
            sheet.theme,
        )
    ticks = charts[-1].get_xticks().astype(int)
    charts[-1].set_xticks(ticks, [names[tick] for tick in ticks])
    charts[-1].set_xlabel(unit, fontsize=8, color=sheet.theme.soft, labelpad=2)


def _draw_tokens(axes: Axes, video: ImageReport, theme: Theme) -> None:
    stages = len(video.stages)
    shades = theme.bars[-stages:] if stages <= len(theme.bars) else [theme.faint] * stages
    for stage, shade in enumerate(shades):
        layers = video.describe_stage(stage).partition(":")[0]
        axes.bar(range(video.frames), video.kept_per_frame(stage).numpy(), color=shade, label=layers)
    if stages > 1:
        style: dict[str, Any] = {"fontsize": 8, "frameon": False, "borderpad": 0, "labelcolor": theme.ink}
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=stages, **style)
    _finish(axes, video, "tokens kept per frame", theme)


def _draw_weights(axes: Axes, video: ImageReport, theme: Theme) -> None:
    axes.bar(range(video.frames), video.weight_per_frame().numpy(), color=theme.bars[-1])
    axes.axhline(video.tokens_per_frame, color=theme.soft, linewidth=0.8, linestyle=(0, (4, 3)))
    whole = f"dashed: {number(round(video.tokens_per_frame, 1))} tokens, a whole frame"
    axes.text(1, 1.08, whole, transform=axes.transAxes, ha="right", fontsize=8, color=theme.soft)
    _finish(axes, video, "weight per frame: how many tokens the kept ones count for", theme)


def _finish(axes: Axes, video: ImageReport, title: str, theme: Theme) -> None:
    """A tick for every frame if there is room, a line between segments, a heading at the left."""
    ticks = evenly(video.frames, FRAME_TICKS)
    axes.set_xlim(-0.5, video.frames - 0.5)
    axes.set_xticks(ticks, [""] * len(ticks))
    axes.margins(y=0.12)
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.tick_params(labelsize=8, colors=theme.soft, length=2)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    for end in accumulate(video.segments[:-1]):
        axes.axvline(end - 0.5, color=theme.soft, linewidth=0.8, linestyle=":")
    axes.set_title(title, fontsize=9, color=theme.ink, loc="left", pad=5)
