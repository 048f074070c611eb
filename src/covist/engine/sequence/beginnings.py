"""The first reductions of a call: equal ones once, and images of equal size together if the method can do so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covist.budget import Budget, Coverage
from covist.contract.reading import readable_schedule
from covist.contract.views import ImageContext
from covist.engine.allotment import token_count
from covist.engine.settings import CompressionSettings
from covist.reduction import Reduction
from covist.schedule import Schedule

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Begun:
    """An image before the first layer; beams and repeated prompts share it."""

    budget: int
    schedule: Schedule
    outcome: Reduction
    missed: float | None = None


@dataclass(eq=False)
class Entered:
    """An image of a prompt, and what it has become once it has begun."""

    context: ImageContext | None  # until it has begun: what a method knows about an image goes with it
    begun: Begun | None = None
    memory: Any = None


@dataclass(eq=False)
class _Group:
    """Images that begin alike: the same image with the same instruction and budget."""

    embeddings: Tensor | None  # of the instruction, if its ids are not known
    budget: Budget
    members: list[Entered]


class Beginnings:
    """Lets the method begin with every image: once per image, instruction and budget."""

    def __init__(self, settings: CompressionSettings):
        self._settings = settings
        self._groups: dict[Any, list[_Group]] = {}
        self._waiting: dict[tuple[int, Budget], list[_Group]] = {}  # of one size and budget, to begin together

    def add(self, image: ImageContext, budget: Budget, first: Numbers, said: Numbers | None) -> Entered:
        """An image that has begun, or will have after `finish`.

        first: its first position, on the host; said: the ids of its instruction, if they are known
        """
        entered = Entered(image)
        group = self._like(image, budget, first, said)
        group.members.append(entered)
        begun = group.members[0].begun
        if begun is not None:
            self._enter(entered, begun)
        elif len(group.members) == 1:
            self._wait(image, group)
        return entered

    def finish(self) -> None:
        """Let the images begin that have waited for others."""
        for groups in self._waiting.values():
            self._begin(groups)
        self._waiting = {}

    def _like(self, image: ImageContext, budget: Budget, first: Numbers, said: Numbers | None) -> _Group:
        """The images that begin like this one."""
        asked = image.instruction
        known = self._groups.setdefault((id(image.signals), asked.text, said, first, budget), [])
        embeddings = asked.embeddings if said is None else None
        for group in known:
            if embeddings is None or _equal(embeddings, group.embeddings):
                return group
        known.append(_Group(embeddings, budget, []))
        return known[-1]

    def _wait(self, image: ImageContext, group: _Group) -> None:
        method, size = self._settings.method, image.grid.size
        # The count of a coverage is known only when a method has worked out all about the image.
        alone = isinstance(group.budget, Coverage) or image.signals.owner is not None
        most = 1 if alone else method.images_at_once(size, image.positions.device)
        groups = self._waiting.setdefault((size, group.budget), [])
        groups.append(group)
        if len(groups) >= most:
            self._begin(self._waiting.pop((size, group.budget)))

    def _begin(self, groups: Sequence[_Group]) -> None:
        """Begin with the first image of each group, all of one size and budget."""
        images = [image for group in groups if (image := group.members[0].context) is not None]
        count = token_count(self._settings, images[0], groups[0].budget)
        least = self._settings.min_coverage
        for image, group, begun in zip(images, groups, self._reduced(images, count), strict=True):
            coverage = begun.outcome.coverage
            if least is not None and coverage is not None and coverage < least:  # better none than a poor one
                (whole,) = self._reduced([image], image.grid.size)
                begun = replace(whole, missed=float(coverage))
            for entered in group.members:
                self._enter(entered, begun)

    def _reduced(self, images: Sequence[ImageContext], budget: int) -> list[Begun]:
        method = self._settings.method
        schedule = readable_schedule(method, self._settings.decoder, budget, images[0].grid.size)
        first = schedule.tokens_per_layer[0]
        if len(images) == 1:
            return [Begun(budget, schedule, images[0].held or method.begin(images[0], first))]
        return [Begun(budget, schedule, outcome) for outcome in method.begin_together(images, first)]

    def _enter(self, entered: Entered, begun: Begun) -> None:
        assert entered.context is not None, "an image begins once"
        entered.begun, entered.memory = begun, self._settings.method.memory(entered.context)
        entered.context = None


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and torch.equal(one, other)
