"""What `run`, `show` and `bench` do first: a model, pictures, a question."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covist.cli.console import note
from covist.errors import CovistError

if TYPE_CHECKING:
    from PIL import Image

    from covist.request.loading import LoadedModel


def load(name: str, clip: str | None, device: str) -> LoadedModel:
    from transformers.utils import logging

    from covist.request.loading import load_model

    logging.disable_progress_bar()
    return load_model(name, clip, device)


def question(images: list[Path] | None, prompt: str | None) -> tuple[list[Image.Image], str]:
    """The user's pictures and question, or the bundled ones if neither is given."""
    from covist.request.images import load_image

    if images is None and prompt is None:
        from covist import tiny

        picture, asked, _ = tiny.demo()
        return [picture], asked
    if prompt is not None and not prompt.strip():
        raise CovistError("--prompt is empty")
    if not images:
        raise CovistError("--prompt needs an --image to ask about; leave both out for the bundled example")
    if prompt is None:
        raise CovistError("--image needs a --prompt: what should be asked about the picture?")
    return [load_image(path) for path in images], prompt


def request(loaded: LoadedModel, pictures: list[Image.Image], asked: str) -> Mapping[str, Any]:
    """The model's inputs; tells which words of the question it cannot read."""
    from covist.request.answer import prepare, unknown_words

    inputs = prepare(loaded, pictures, asked)
    if words := unknown_words(loaded, asked):
        note(f"the model has no word for {', '.join(words)}")
    return inputs
