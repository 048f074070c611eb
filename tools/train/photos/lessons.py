"""What is learned about each photograph: captions that people wrote, and questions with short answers.

A folder holds `images`, `captions.txt` and, if questions are to be learned too, `questions.jsonl`, which
`train.photos.questions` writes. An image may have only one of the two.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covist.eval.photos.data import IMAGES, name_hash, read_photos, split_of
from covist.files import parse_json

QUESTIONS = "questions.jsonl"


@dataclass(frozen=True)
class Lesson:
    """A photograph, what people wrote about it, and pairs of a question and its answer."""

    path: Path
    captions: tuple[str, ...] = ()
    questions: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> int:
        """How long the lesson is, roughly."""
        texts = (*self.captions, *(" ".join(asked) for asked in self.questions))
        return sum(len(text.split()) for text in texts)

    def part(self, captions: int, questions: int, rng: np.random.Generator) -> "Lesson":
        """So many of the captions and questions, drawn at random, or all if there are fewer."""
        drawn = (
            tuple(own[place] for place in sorted(rng.permutation(len(own))[:most]))
            for own, most in ((self.captions, captions), (self.questions, questions))
        )
        return Lesson(self.path, *drawn)


def read_lessons(folder: Path, split: str) -> list[Lesson]:
    """The photographs of a split, in an order that follows from their names and is otherwise random."""
    captions = {photo.path.name: photo.captions for photo in read_photos(folder, split)}
    asked = _questions(folder, split)
    names = sorted({*captions, *asked}, key=name_hash)
    return [Lesson(folder / IMAGES / name, captions.get(name, ()), tuple(asked.get(name, ()))) for name in names]


def _questions(folder: Path, split: str) -> dict[str, list[tuple[str, str]]]:
    """Questions and answers by the name of the image."""
    asked: dict[str, list[tuple[str, str]]] = defaultdict(list)
    if (folder / QUESTIONS).is_file():
        for row in map(parse_json, (folder / QUESTIONS).read_text(encoding="utf-8").splitlines()):
            name = Path(row["image"]).name
            if split_of(name) == split:
                asked[name].append((row["question"], row["answer"]))
    return asked
