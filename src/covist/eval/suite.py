"""Suites: images with questions about them.

`scenes`, `scenes-hd` and `films` are fixed held-out sets, one for each test bed: what they show and ask comes from
seeds that training never uses. Every fifth image of `scenes` is a crowded one, so that the first images of the suite
are a fair sample of the whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

from PIL import Image

from covist.errors import CovistError, choose_instead
from covist.eval.questions import Asked
from covist.request.videos import Video
from covist.tiny import (
    DENSE_FAMILY,
    FAMILIES,
    HELD_OUT_SEEDS,
    Scene,
    dense_questions_for,
    questions_for,
    sample_dense_scene,
    sample_scene,
    scene_image,
)
from covist.tiny.films import FILM_FAMILIES, film_frames, film_questions_for, sample_film
from covist.tiny.hd import HD_FAMILIES, hd_questions_for, sample_hd_scene

ORDINARY_SEEDS = HELD_OUT_SEEDS[:320]  # with one question per family that the scene allows: 2,522 questions
CROWDED, CROWDED_EVERY = 80, 5  # crowded scenes, one in so many images; about five questions each
CROWDED_SEEDS = HELD_OUT_SEEDS[10_000:11_000]  # more than needed: some allow no question
HD_SEEDS = HELD_OUT_SEEDS[:200]  # 1,600 questions
FILM_SEEDS = HELD_OUT_SEEDS[:400]
FREE_ANSWER = 64  # tokens of an answer that may be longer than the right one
HALVES = ("even", "odd")
"""Halves of a suite by the numbers of its images: one to choose on, one to verify the choice."""
_PROBED = 8  # items that a fingerprint reads


Visual = Image.Image | Video


@dataclass(frozen=True)
class Item:
    """An image, or several images and videos, with the questions about them.

    number: its place in a suite, set by `Suite.of`
    questions: the questions, each a `Question`
    draw: returns the image or images, called each time they are needed; `Item.of` takes them directly
    """

    number: int
    questions: tuple[Asked, ...]
    draw: Callable[[], Visual | Sequence[Visual]]

    @classmethod
    def of(cls, shown: Visual | Sequence[Visual], *questions: Asked) -> Item:
        """An item from images and videos in memory, and the questions about them."""
        return cls(0, questions, lambda: shown)

    @property
    def shown(self) -> list[Visual]:
        drawn = self.draw()
        return list(drawn) if isinstance(drawn, Sequence) else [drawn]

    @property
    def image(self) -> Image.Image:
        """The first image."""
        return next(one for one in self.shown if isinstance(one, Image.Image))


@dataclass(frozen=True)
class Suite:
    """A fixed sequence of items: `Suite.of` makes one from your own items, `read_data` from a file.

    families: the families of questions, in the order of the tables
    size: the number of items
    item: creates the item with a number, when it is needed
    model: the default model
    one_size: whether all images have the same number of visual tokens, so that a share is a count
    unit: what tables call an item
    max_new_tokens: the longest answer; None means that of the longest right one
    identity: identifies content beyond the items that the fingerprint reads

    >>> from covist.eval import Item, Question, Suite
    >>> image, question, answer = covist.tiny.demo()
    >>> suite = Suite.of("mine", [Item.of(image, Question(question, answer), Question("what color is the square?"))])
    >>> suite.size, suite.families
    (1, ('exact', 'agreement'))
    """

    name: str
    families: tuple[str, ...]
    size: int
    item: Callable[[int], Item]
    model: str = "tiny"
    one_size: bool = True
    unit: str = "image"
    max_new_tokens: int | None = None
    identity: str = ""

    @classmethod
    def of(cls, name: str, items: Iterable[Item], unit: str = "image", identity: str = "") -> Suite:
        """A suite from your own items."""
        own = [replace(item, number=number) for number, item in enumerate(items)]
        if not own:
            raise CovistError(f"suite {name} has no items")
        asked = [question for item in own for question in item.questions]
        families = tuple(dict.fromkeys(question.family for question in asked))
        checksum = f"{zlib.crc32((identity + repr(asked)).encode()):08x}"
        return cls(
            name,
            families,
            len(own),
            own.__getitem__,
            one_size=False,
            unit=unit,
            max_new_tokens=FREE_ANSWER,
            identity=checksum,
        )

    def items(self, limit: int | None = None, half: str | None = None) -> list[Item]:
        """The first `limit` items, or all; with `half` only those with "even" or "odd" numbers."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise CovistError(f"limit must be a positive number of images, got {limit!r}")
        if half not in (None, *HALVES):
            raise CovistError(f"half must be {' or '.join(HALVES)}, got {half!r}")
        numbers = range(self.size) if half is None else range(HALVES.index(half), self.size, 2)
        if not numbers:
            raise CovistError(f"{self.name} has no {half} images")
        return [self.item(number) for number in numbers[:limit]]

    def fingerprint(self) -> str:
        """A checksum that changes with the images and questions."""
        checksum = zlib.crc32(self.identity.encode())
        for item in self.items(_PROBED):
            for visual in item.shown:
                for image in visual.frames if isinstance(visual, Video) else [visual]:
                    checksum = zlib.crc32(image.tobytes(), checksum)
            checksum = zlib.crc32(repr(item.questions).encode(), checksum)
        return f"{checksum:08x}"


@cache
def crowded_scenes() -> list[Scene]:
    """The crowded scenes of the suite `scenes`, in order."""
    scenes = map(sample_dense_scene, CROWDED_SEEDS)
    return list(islice((scene for scene in scenes if dense_questions_for(scene)), CROWDED))


def _scene_item(number: int) -> Item:
    crowds, turn = divmod(number, CROWDED_EVERY)  # crowded scenes before it, and its position since the last one
    if turn == CROWDED_EVERY - 1:
        scene = crowded_scenes()[crowds]
        questions = dense_questions_for(scene)
    else:
        scene = sample_scene(ORDINARY_SEEDS[number - crowds])
        questions = questions_for(scene)
    return Item(number, tuple(questions), lambda: scene_image(scene))


def _hd_item(number: int) -> Item:
    scene = sample_hd_scene(HD_SEEDS[number])
    return Item(number, tuple(hd_questions_for(scene)), lambda: scene_image(scene))


def _film_item(number: int) -> Item:
    film = sample_film(FILM_SEEDS[number])
    return Item(number, tuple(film_questions_for(film)), lambda: Video.of(film_frames(film)))


SUITES = {
    "scenes": Suite("scenes", (*FAMILIES, DENSE_FAMILY), len(ORDINARY_SEEDS) + CROWDED, _scene_item),
    "scenes-hd": Suite("scenes-hd", tuple(HD_FAMILIES), len(HD_SEEDS), _hd_item, model="tiny-next"),
    # A count of tokens is one per frame, so a share stays a share.
    "films": Suite(
        "films", tuple(FILM_FAMILIES), len(FILM_SEEDS), _film_item, model="tiny-video", one_size=False, unit="video"
    ),
}


def load_suite(name: str | Suite) -> Suite:
    """A bundled suite by name ("scenes", "scenes-hd", "films"); a `Suite` object is returned as it is.

    >>> covist.eval.load_suite("scenes").size
    400
    """
    if isinstance(name, Suite):
        return name
    if name not in SUITES:
        raise CovistError(f"unknown suite {name!r}; {choose_instead(name, SUITES)}")
    return SUITES[name]
