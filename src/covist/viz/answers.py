"""Figures of an answered question: the drawing with the title that belongs to it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from covist.errors import CovistError
from covist.request.answer import Answer
from covist.viz.figure import draw_overlay, draw_report
from covist.viz.layout import seen_views

LINE = 92  # letters of the title that a figure has room for


def draw_answer(
    answer: Answer, pictures: list[Image.Image], prompt: str, processor: Any, which: int = 0, overlay: bool = False
) -> Figure:
    """What an answer was based on, for picture number `which` of the prompt."""
    if answer.report is None:
        raise CovistError(f"{answer.method} compresses nothing, so there is nothing to draw")
    if not 0 <= which < len(pictures):
        raise CovistError(f"there is no picture number {which + 1}; the prompt has {len(pictures)}")
    image = answer.report.images[which]
    views = seen_views(pictures[which], image.grid, processor)
    how = "" if len(image.stages) == 1 else "on average "
    subtitle = f"{answer.method}: {how}{image.mean_tokens:.4g} of {image.tokens} visual tokens per layer"
    draw = draw_overlay if overlay else draw_report
    return draw(image, views, _headline(prompt, answer.text), subtitle)


def _headline(prompt: str, answer: str) -> str:
    """Question and answer in one line that fits; the answer is cut last."""
    answer = _cut(answer, LINE // 2)
    return f"{_cut(prompt, LINE - len(answer))}  \N{RIGHTWARDS ARROW}  {answer}"


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
