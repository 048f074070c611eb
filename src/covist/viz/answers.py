"""Figures of an answered question: a drawing with question and answer as its title."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from PIL import Image

from covist.report.stages import ImageReport
from covist.viz.figure import draw_overlay, draw_report
from covist.viz.film import draw_film
from covist.viz.layout import seen_views
from covist.viz.theme import LIGHT, Theme

LINE = 92  # letters of a title that fit a figure


def draw_answer(
    report: ImageReport,
    image: Image.Image | Sequence[Image.Image] | None = None,
    *,
    method: str,
    prompt: str,
    answer: str,
    overlay: bool = False,
    seconds: Sequence[float] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw what the answer to a prompt was based on, for one of its images or videos.

    report: what was kept of the image or video, from `Report.images` or `Report.visuals`
    image: the original image, or the frames of a video; by default, what the encoder saw
    method, prompt, answer: for the title
    overlay: draw only the representatives on the image, not the evidence maps
    seconds: the time of each frame that the model sees, in a video
    theme: `covist.viz.LIGHT` or `covist.viz.DARK`

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model(**inputs)
    >>> figure = covist.viz.draw_answer(
    ...     handle.report.images[0], image, method="covist-fixed", prompt=question, answer=answer
    ... )
    >>> figure.texts[1].get_text()
    'covist-fixed: 64 of 576 visual tokens per layer'
    """
    how = "" if len(report.stages) == 1 else "on average "
    subtitle = f"{method}: {how}{report.summary}"
    views, headline = seen_views(report, image), _headline(prompt, answer)
    if report.is_video:
        return draw_film(report, views, headline, subtitle, seconds, theme)
    return (draw_overlay if overlay else draw_report)(report, views, headline, subtitle, theme)


def _headline(prompt: str, answer: str) -> str:
    """Question and answer in one line; if they do not fit, the question is shortened more than the answer."""
    answer = _cut(answer, LINE // 2)
    return f"{_cut(prompt, LINE - len(answer))}  \N{RIGHTWARDS ARROW}  {answer}"


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
