"""The figure of the front page: what `covist show` draws without any option."""

from __future__ import annotations

from matplotlib.figure import Figure

from covist import tiny
from covist.api.setup import Setup
from covist.request.answer import Answer, ask
from covist.request.inputs import prepare
from covist.request.loading import load_model
from covist.viz import draw_answer
from covist.viz.theme import Theme


def answered() -> Answer:
    """The bundled question about the bundled image."""
    loaded = load_model("tiny")
    image, question, _ = tiny.demo()
    return ask(loaded, prepare(loaded, [image], question), Setup("covist-fixed", 64), 8)


def draw(answer: Answer, theme: Theme) -> Figure:
    image, question, _ = tiny.demo()
    assert answer.report is not None
    (kept,) = answer.report.images
    return draw_answer(kept, image, method=answer.method, prompt=question, answer=answer.text, theme=theme)
