"""Suites: images with questions whose answers are known exactly.

`scenes` and `scenes-hd` are fixed held-out sets, one for each embedded model: their images and questions follow from
seeds that training never draws from.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from PIL import Image

from covist.errors import CovistError
from covist.tiny import FAMILIES, HELD_OUT_SEEDS, Question, questions_for, sample_scene, scene_image
from covist.tiny.hd import HD_FAMILIES, hd_questions_for, sample_hd_scene

SCENES = 320  # with one question per family, where the scene offers one: about 2,500 questions
HD_SCENES = 200  # 1,600 questions
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


def scene_seeds(count: int = SCENES) -> Sequence[int]:
    """The seeds of a suite of `count` scenes, in order."""
    return HELD_OUT_SEEDS[:count]


def _scene_item(number: int) -> Item:
    scene = sample_scene(scene_seeds()[number])
    return Item(number, tuple(questions_for(scene)), lambda: scene_image(scene))


def _hd_item(number: int) -> Item:
    scene = sample_hd_scene(scene_seeds(HD_SCENES)[number])
    return Item(number, tuple(hd_questions_for(scene)), lambda: scene_image(scene))


SUITES = {
    "scenes": Suite("scenes", tuple(FAMILIES), SCENES, _scene_item),
    "scenes-hd": Suite("scenes-hd", tuple(HD_FAMILIES), HD_SCENES, _hd_item, model="tiny-next"),
}


def load_suite(name: str) -> Suite:
    """A suite by its name.

    >>> covist.eval.load_suite("scenes").size
    320
    """
    if name not in SUITES:
        raise CovistError(f"unknown suite {name!r}; choose one of {', '.join(SUITES)}")
    return SUITES[name]
