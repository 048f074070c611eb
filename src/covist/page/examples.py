"""Images and questions to start with: bundled scenes that the embedded models have not seen in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from covist.eval.suite import SUITES, load_suite
from covist.tiny import demo

COUNT = 6


@dataclass(frozen=True)
class Example:
    """An image file and a question about it."""

    path: str
    question: str


def write_examples(model: str, folder: Path) -> list[Example]:
    """Write the examples of a model to `folder`; a model that is not embedded gets those of `tiny`."""
    suite = next((suite for suite in SUITES.values() if suite.model == model), load_suite("scenes"))
    shown = [demo("next" if suite.model == "tiny-next" else "tiny")[:2]]
    for number, item in enumerate(suite.items(COUNT)[1:], start=1):
        shown.append((item.image, item.questions[number % len(item.questions)].question))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, (image, question) in enumerate(shown):
        path = folder / f"example-{number}.png"
        image.save(path)
        written.append(Example(str(path), question))
    return written
