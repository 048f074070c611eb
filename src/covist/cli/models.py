"""What `run`, `show` and `bench` do first: a model, images, a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from covist.cli.console import note
from covist.errors import CovistError

if TYPE_CHECKING:
    from PIL import Image

    from covist.request.answer import Answer
    from covist.request.budgets import Reach
    from covist.request.inputs import Request
    from covist.request.loading import LoadedModel


def load(name: str, clip: str | None, device: str) -> LoadedModel:
    from transformers.utils import logging

    from covist.request.loading import load_model

    logging.disable_progress_bar()
    return load_model(name, clip, device)


def question(images: list[str] | None, prompt: str | None, model: str) -> tuple[list[Image.Image], str]:
    """The user's images and question, or the bundled ones if neither is given; `tiny-next` has its own."""
    from covist.request.images import load_image

    if images is None and prompt is None:
        from covist import tiny

        image, asked, _ = tiny.demo("next" if model == "tiny-next" else "tiny")
        return [image], asked
    if prompt is not None and not prompt.strip():
        raise CovistError("--prompt is empty")
    if not images:
        raise CovistError("--prompt needs an --image to ask about; leave both out for the bundled example")
    if prompt is None:
        raise CovistError("--image needs a --prompt: what should be asked about the image?")
    return [load_image(path) for path in images], prompt


def request(loaded: LoadedModel, images: list[Image.Image], asked: str) -> Request:
    """The model's inputs; notes which words of the question it cannot read."""
    from covist.request.inputs import prepare, unknown_words

    made = prepare(loaded, images, asked)
    if words := unknown_words(loaded, asked):
        note(f"the model has no word for {', '.join(words)}")
    return made


def reaches(answer: Answer, budget: str) -> list[Reach]:
    """What the method made of the budget, per image."""
    from covist.request.budgets import reach

    images = () if answer.report is None else answer.report.images
    return [reach(answer.method, budget, image.tokens, len(image.tokens_per_layer)) for image in images]


def draw(
    answer: Answer,
    images: list[Image.Image],
    asked: str,
    destination: Path,
    which: int = 0,
    overlay: bool = False,
) -> None:
    """Write the figure of what an answer was based on, for image number `which` of the prompt; a page has them all."""
    from covist.viz import draw_answer, save_figure
    from covist.viz.files import PAGES

    if answer.report is None:
        raise CovistError(f"{answer.method} compresses nothing, so there is nothing to draw")
    if not 0 <= which < len(images):
        raise CovistError(f"there is no image number {which + 1}; the prompt has {len(images)}")
    if destination.suffix.lower() in PAGES:
        answer.report.save(destination, image=images)
        return
    figure = draw_answer(
        answer.report.images[which],
        images[which],
        method=answer.method,
        prompt=asked,
        answer=answer.text,
        overlay=overlay,
    )
    save_figure(figure, destination)
