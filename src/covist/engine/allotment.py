"""How many tokens each image of a prompt may keep, where that depends on the other images."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from covist.budget import USUAL_FLOOR, Ages, Budget, Coverage, Total, require_room
from covist.contract.reading import readable_schedule
from covist.contract.views import ImageContext
from covist.engine.question import Span, Turns
from covist.engine.settings import CompressionSettings
from covist.errors import CovistError
from covist.formulas.allocation import allocate
from covist.units import counted


class Allotment:
    """Gives every image of a prompt a budget of its own."""

    def __init__(self, settings: CompressionSettings):
        self._settings = settings
        self._known: dict[Any, list[int]] = {}  # beams and repeated prompts show the same images

    def budgets(self, images: Sequence[ImageContext], ages: Callable[[], Sequence[int]]) -> list[Budget]:
        """The budget of each image; `ages` returns how many later turns have images, for each of them."""
        budget, cap = self._settings.budget, self._settings.max_visual_tokens
        require_room(len(images), budget, cap)
        own: list[Budget] = [budget] * len(images)
        if isinstance(budget, Ages) and len(images) > 1:
            own = [budget.at(age) for age in ages()]
        elif isinstance(budget, Total):
            most = [image.grid.size for image in images]
            own = [Total(count) for count in self._shared(images, most, budget.tokens, budget.floor)]
        return own if cap is None else self._capped(images, own, cap)

    def _shared(
        self, images: Sequence[ImageContext], most: list[int], total: int, floor: int | None = None
    ) -> list[int]:
        """At most `total` tokens, shared by what they add to the coverage of images; `most` if that is enough."""
        if sum(most) <= total:
            return most
        key = (tuple(id(image.signals) for image in images), tuple(most), total, floor)
        if key not in self._known:
            self._known[key] = allocate([*map(self._gains, images)], most, total, floor or USUAL_FLOOR)
        return self._known[key]

    def _gains(self, image: ImageContext) -> Iterator[float]:
        """What each further token adds; every frame of a video counts as an image."""
        for gain in self._settings.method.coverage_gains(image):
            yield image.grid.frames * gain

    def _capped(self, images: Sequence[ImageContext], budgets: Sequence[Budget], cap: int) -> list[Budget]:
        """The budgets, smaller ones where all images together would have more tokens in a layer than the cap."""
        counts = [token_count(self._settings, image, own) for image, own in zip(images, budgets, strict=True)]
        peaks = [self._peak(image, count) for image, count in zip(images, counts, strict=True)]
        if sum(peaks) <= cap:
            return [Total(count) for count in counts]
        allowed = self._shared(images, peaks, cap)
        return [Total(self._fitting(*one)) for one in zip(images, counts, allowed, strict=True)]

    def _fitting(self, image: ImageContext, count: int, allowed: int) -> int:
        """The largest budget up to `count` with which no layer sees more than `allowed` tokens of an image."""
        fitting = bisect_right(range(1, count + 1), allowed, key=lambda budget: self._peak(image, budget))
        if not fitting:
            raise CovistError(
                f"max_visual_tokens={self._settings.max_visual_tokens} is too small for these images: some layer sees "
                f"{self._peak(image, 1)} tokens of an image at any budget of {self._settings.method.name}"
            )
        return fitting

    def _peak(self, image: ImageContext, budget: int) -> int:
        """Tokens of an image in the layer that sees most of them."""
        settings = self._settings
        return max(readable_schedule(settings.method, settings.decoder, budget, image.grid.size).tokens_per_layer)


def token_count(settings: CompressionSettings, image: ImageContext, budget: Budget) -> int:
    """What a budget comes to for an image."""
    tokens, frames = image.grid.size, image.grid.frames
    if not isinstance(budget, Coverage):
        unseen = image.signals.unseen
        left_out = 0 if unseen is None else int(unseen.sum())
        return min(tokens, budget.count_for(tokens + left_out, frames))
    # Keeping a few more tokens is better than running uncompressed because a little coverage is missing.
    level = max(budget.level, settings.min_coverage or 0.0)
    started = perf_counter()
    count = settings.method.count_for(image, level, *budget.bounds(tokens, frames))
    image.seconds = perf_counter() - started
    return count


def ages(turns: Turns, images: Sequence[Span]) -> list[int]:
    """For each image of a prompt, how many later turns show others: images of one turn are of one age."""
    if not turns.assistant:
        raise CovistError(
            f"budget 'ages:...' needs the turns of a conversation, and none are marked in a prompt of "
            f"{counted(len(images), 'image')}; pass the model's processor, or turn_markers= for its template"
        )
    firsts = [turns.first_of_turn(images, number) for number in range(len(images))]
    return [len({later for later in firsts if later > first}) for first in firsts]
