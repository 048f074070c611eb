"""Photographs as a suite: items with even numbers are the development half, odd ones the test half."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from covist.eval.data import read_data
from covist.eval.photos.data import DEVELOPMENT, PROMPT, TEST, Photo, read_photos
from covist.eval.questions import Question
from covist.eval.suite import Item, Suite
from covist.request.images import load_image

NAME = "photos"
CAPTIONS = "captions"
LONGEST_CAPTION = 24  # tokens of a caption that the model writes itself


def photo_suite(data: str | Path) -> Suite:
    """The held-out photographs of a folder with `captions.txt` and `images`, or those of a file of questions.

    Of a folder, both halves are cut to the length of the shorter one, because their numbers alternate. The file has the
    lines that `read_data` reads; none of its images is for training.
    """
    return _questions(data) if Path(data).is_file() else _captions(data)


def _questions(path: str | Path) -> Suite:
    """Answers may be as long as the right ones."""
    return replace(read_data(path, name=NAME), max_new_tokens=None)


def _captions(folder: str | Path) -> Suite:
    halves = (read_photos(folder, split) for split in (DEVELOPMENT, TEST))
    photos = chain.from_iterable(zip(*halves, strict=False))
    return replace(Suite.of(NAME, map(_item, photos)), max_new_tokens=LONGEST_CAPTION)


def _item(photo: Photo) -> Item:
    """Every caption that people wrote, to be scored, and a last question, to be answered."""
    scored = (Question(PROMPT, (caption,), metric="exact", family=CAPTIONS) for caption in photo.captions)
    return Item(0, (*scored, Question(PROMPT)), partial(load_image, photo.path))
