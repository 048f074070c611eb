"""The figures of the front pages: what `covist show` draws of the bundled scene, and the same of a photograph."""

from __future__ import annotations

from matplotlib.figure import Figure

from covist.api.setup import Setup
from covist.report.stages import ImageReport
from covist.request.answer import ask
from covist.request.inputs import prepare
from covist.request.loading import load_model
from covist.viz import draw_answer, draw_report, seen_views
from covist.viz.layout import owners
from covist.viz.panels import show_representatives
from covist.viz.theme import Theme
from covist.viz.weights import WeightScale
from plates.images import Still

METHOD, BUDGET = "covist-fixed", 64
SQUARE = 3.0  # inches


def kept_of(still: Still) -> tuple[ImageReport, str]:
    """What is kept of an image, and what the embedded model answers."""
    loaded = load_model("tiny")
    answer = ask(loaded, prepare(loaded, [still.image], still.question), Setup(METHOD, BUDGET), 8)
    assert answer.report is not None
    return answer.report.images[0], answer.text


def draw(still: Still, kept: ImageReport, answer: str, theme: Theme) -> Figure:
    """The whole figure, with question and answer."""
    return draw_answer(kept, still.image, method=METHOD, prompt=still.question, answer=answer, theme=theme)


def draw_unanswered(still: Still, kept: ImageReport, theme: Theme) -> Figure:
    """The whole figure of an image about which the model knows nothing."""
    return draw_report(kept, seen_views(kept, still.image), still.caption, f"{METHOD}: {kept.summary}", theme)


def draw_square(still: Still, kept: ImageReport, theme: Theme) -> Figure:
    """Only the representatives, without a margin."""
    figure = Figure(figsize=(SQUARE, SQUARE), facecolor=theme.background)
    axes, (view,) = figure.add_axes((0, 0, 1, 1)), seen_views(kept, still.image)
    weights = kept.weights.float().numpy()
    cell = 72 * SQUARE / view.columns
    scale = WeightScale(float(weights.max()), theme)
    show_representatives(axes, view, kept.kept.numpy(), weights, owners(kept, 0), scale, cell, theme=theme)
    axes.set_axis_off()
    return figure
