"""Images and questions to start with: scenes that the embedded models have not seen in training, and a photograph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from covist.budget import Budget
from covist.errors import CovistError
from covist.eval.suite import SUITES, load_suite
from covist.page.asking import UNCOMPRESSED, make_request
from covist.request.images import load_image
from covist.serve.errors import Refusal
from covist.serve.service import Service
from covist.tiny import demo

SCENES = 6
SCALES = (1, 2, 4, 8)
ENOUGH = 4
"""Tokens of an example for each token of the budget: with fewer there is little to see, or nothing is compressed."""
PHOTOGRAPH = Path(__file__).with_name("photograph.jpg")
"""A cup of coffee, cut to a square: a photograph by Rachel Michetti, CC0, from the data of scikit-image."""


@dataclass(frozen=True)
class Example:
    """An image file and a question about it."""

    path: str
    question: str


def is_embedded(model: str) -> bool:
    """Whether a model comes with covist: these know scenes, and nothing of photographs."""
    return any(suite.model == model for suite in SUITES.values())


def fitting_examples(service: Service, budget: Budget, folder: Path) -> tuple[list[Example], int]:
    """The examples of a service's model, and the visual tokens of each.

    Models that see more of larger images get larger ones, until the budget is small beside their tokens.
    """
    written: list[Example] = []
    tokens = 0
    for scale in SCALES:
        larger = write_examples(service.name, folder / str(scale), scale)
        request = make_request(service.name, larger[0].path, larger[0].question, UNCOMPRESSED)
        try:
            now = service.visual_tokens(request)
        except Refusal as refusal:
            if written:
                break
            raise CovistError(f"--page: the limits refuse the page's own example ({refusal.message})") from None
        if now <= tokens:  # the model sees no more of larger images
            break
        written, tokens = larger, now
        if ENOUGH * budget.count_for(tokens) <= tokens:
            break
    return written, tokens


def write_examples(model: str, folder: Path, scale: int = 1) -> list[Example]:
    """Write the examples of a model to `folder`, enlarged; a model that is not embedded gets those of `tiny`."""
    suite = next((one for one in SUITES.values() if one.model == model and one.unit == "image"), load_suite("scenes"))
    shown = [demo("next" if suite.model == "tiny-next" else "tiny")[:2]]
    for number, item in enumerate(suite.items(SCENES)[1:], start=1):
        shown.append((item.image, item.questions[number % len(item.questions)].question))
    side = scale * shown[0][0].width
    shown = [(image.resize((side, side), Image.Resampling.NEAREST), question) for image, question in shown]
    photograph = load_image(PHOTOGRAPH)
    shown.append((photograph.resize((max(side, photograph.width),) * 2), "what is in the cup?"))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, (image, question) in enumerate(shown):
        path = folder / f"example-{number}.png"
        image.save(path)
        written.append(Example(str(path), question))
    return written
