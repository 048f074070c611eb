"""Suites: images with questions whose answers are known exactly.

`scenes` and `scenes-hd` are fixed held-out sets, one for each embedded model: their images and questions follow from
seeds that training never draws from. Every fifth image of `scenes` is a crowded one, so that the first images of the
suite are a fair sample of all of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice

from PIL import Image

from covist.errors import CovistError
from covist.tiny import (
    DENSE_FAMILY,
    FAMILIES,
    HELD_OUT_SEEDS,
    Question,
    Scene,
    dense_questions_for,
    questions_for,
    sample_dense_scene,
    sample_scene,
    scene_image,
)
from covist.tiny.hd import HD_FAMILIES, hd_questions_for, sample_hd_scene

ORDINARY_SEEDS = HELD_OUT_SEEDS[:320]  # with one question per family, where the scene offers one: 2,522 questions
CROWDED, CROWDED_EVERY = 80, 5  # crowded scenes, and how often the suite shows one; about five questions each
CROWDED_SEEDS = HELD_OUT_SEEDS[10_000:11_000]  # more than are needed: some offer no question
HD_SEEDS = HELD_OUT_SEEDS[:200]  # 1,600 questions
_PROBED = 8  # items that a fingerprint reads


@dataclass(frozen=True)
class Item:
    """One image and what is asked about it."""

    number: int
    questions: tuple[Question, ...]
    draw: Callable[[], Image.Image]

    @cached_property
    def image(self) -> Image.Image:
        return self.draw()


@dataclass(frozen=True)
class Suite:
    """A fixed sequence of items; an item is made when it is asked for."""

    name: str
    families: tuple[str, ...]
    size: int
    item: Callable[[int], Item]
    model: str = "tiny"  # whose images these are; asked unless another one is named

    def items(self, limit: int | None = None) -> list[Item]:
        """The first `limit` items, or all."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise CovistError(f"limit must be a positive number of images, got {limit!r}")
        return [self.item(number) for number in range(min(limit or self.size, self.size))]

    def fingerprint(self) -> str:
        """Changes when the generator draws or asks something else."""
        checksum = 0
        for item in self.items(_PROBED):
            checksum = zlib.crc32(item.image.tobytes() + repr(item.questions).encode(), checksum)
        return f"{checksum:08x}"


@cache
def crowded_scenes() -> list[Scene]:
    """The crowded scenes of the suite `scenes`, in order."""
    scenes = map(sample_dense_scene, CROWDED_SEEDS)
    return list(islice((scene for scene in scenes if dense_questions_for(scene)), CROWDED))


def _scene_item(number: int) -> Item:
    crowds, turn = divmod(number, CROWDED_EVERY)  # crowded scenes before it, and its turn since the last one
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


SUITES = {
    "scenes": Suite("scenes", (*FAMILIES, DENSE_FAMILY), len(ORDINARY_SEEDS) + CROWDED, _scene_item),
    "scenes-hd": Suite("scenes-hd", tuple(HD_FAMILIES), len(HD_SEEDS), _hd_item, model="tiny-next"),
}


def load_suite(name: str) -> Suite:
    """A suite by its name.

    >>> covist.eval.load_suite("scenes").size
    400
    """
    if name not in SUITES:
        raise CovistError(f"unknown suite {name!r}; choose one of {', '.join(SUITES)}")
    return SUITES[name]
