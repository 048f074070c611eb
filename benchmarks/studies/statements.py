"""Whether a model that was trained on captions can tell true statements about images from false ones.

PYTHONPATH=benchmarks python -m studies.statements --model FOLDER --limit 1000 vsr

The folder holds `images` and `statements.jsonl`, whose lines have an `image`, a `caption` and a `label`, 1 if the
caption is true: the format in which VSR is shared.

Seeing judges by how much likelier the image makes a statement, blind by how likely the statement is without an image.
Either calls true what exceeds the median of the other half of the statements, so no label is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from covist.errors import CovistError
from covist.eval.photos.data import PROMPT
from covist.eval.photos.subject import CaptionSubject
from covist.eval.questions import Question
from covist.eval.statistics import Estimate, Tally, accuracy, difference
from covist.eval.suite import Item, Suite
from covist.eval.tables import markdown_table, with_interval
from covist.files import parse_json
from covist.request.images import load_image
from covist.request.loading import LoadedModel, load_model
from covist.units import counted

STATEMENTS, IMAGES = "statements.jsonl", "images"


@dataclass(frozen=True)
class Statement:
    image: Path
    text: str
    is_true: bool


@dataclass(frozen=True)
class Judged:
    """Percent of the statements that are judged rightly, with intervals over images."""

    seeing: Estimate
    blind: Estimate
    gain: Estimate  # paired, in percentage points
    true: float  # percent of the statements, which is what calling all of them true would score
    statements: int
    images: int

    @property
    def table(self) -> str:
        about = f"{counted(self.statements, 'statement')} about {counted(self.images, 'image')}"
        rows = [
            ["seeing", with_interval(*self.seeing)],
            ["blind", with_interval(*self.blind)],
            ["seeing minus blind", with_interval(*self.gain, signed=True)],
            ["always true", f"{self.true:.1f}"],
        ]
        return markdown_table([about, "right, %"], rows)


def read_statements(folder: Path, limit: int | None = None) -> list[Statement]:
    """The first statements whose image is in the folder."""
    path = folder / STATEMENTS
    if not path.is_file():
        raise CovistError(f"{folder} has no {STATEMENTS}")
    rows = map(parse_json, path.read_text(encoding="utf-8").splitlines())
    read = (Statement(folder / IMAGES / row["image"], row["caption"], row["label"] == 1) for row in rows)
    found = [statement for statement in read if statement.image.is_file()]
    if not found:
        raise CovistError(f"{folder / IMAGES} has no image of {STATEMENTS}")
    return found[:limit]


def nats(loaded: LoadedModel, statements: Sequence[Statement]) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each statement, seeing and blind, both [statements]; words that are not known do not count."""
    suite = Suite.of("statements", map(_item, statements))
    subject = CaptionSubject(loaded)
    subject.written = {number: [] for number in range(suite.size)}  # the model writes nothing itself
    seeing = [_loss(subject, item) for item in suite.items()]
    with subject.blinded(suite):
        return np.array(seeing), np.array([_loss(subject, item) for item in suite.items()])


def _item(statement: Statement) -> Item:
    return Item(0, (Question(PROMPT, (statement.text,), metric="exact"),), partial(load_image, statement.image))


def _loss(subject: CaptionSubject, item: Item) -> float:
    (words,) = subject.answer(item).losses or ()
    return sum(loss for loss in words if loss is not None)


def judge(statements: Sequence[Statement], seeing: np.ndarray, blind: np.ndarray) -> Judged:
    """What the losses [statements] say about which statements are true."""
    labels = np.array([statement.is_true for statement in statements])
    names = sorted({statement.image for statement in statements})
    rows = np.array([names.index(statement.image) for statement in statements])

    def tally(right: np.ndarray) -> Tally:
        return Tally(_by_image(right, rows), _by_image(np.ones(len(rows)), rows))

    with_image, without = (tally(called_true(score) == labels) for score in (blind - seeing, -blind))
    asked = Tally(with_image.asked, with_image.asked)
    return Judged(
        accuracy(with_image),
        accuracy(without),
        difference(with_image, without, asked),
        100 * float(labels.mean()),
        len(statements),
        len(names),
    )


def called_true(scores: np.ndarray) -> np.ndarray:
    """Which scores exceed the median of those in the other half, by even and odd places."""
    even = np.arange(len(scores)) % 2 == 0
    return scores > np.where(even, np.median(scores[~even]), np.median(scores[even]))


def _by_image(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Sums by image, [images, 1]."""
    return np.bincount(rows, weights=values)[:, None]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.statements", description=__doc__)
    parser.add_argument("folder", type=Path, help=f"with {STATEMENTS} and {IMAGES}")
    parser.add_argument("--model", required=True, help="the folder of a model that was trained on captions")
    parser.add_argument("--limit", type=int, help="statements, the first ones")
    options = parser.parse_args(arguments)
    statements = read_statements(options.folder, options.limit)
    print(judge(statements, *nats(load_model(options.model), statements)).table)


if __name__ == "__main__":
    main()
