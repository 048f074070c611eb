"""Budgets that an image does not get exactly: above its token count, or below what a method can reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from covist.budget import Budget, Coverage
from covist.methods.create import create_method
from covist.methods.inside import PUBLISHED_LAYERS
from covist.report.stages import ImageReport
from covist.units import counted

ALL_TOKENS = "a budget of all tokens or more leaves the image uncompressed"
_ROUNDING = 0.5  # counts are whole numbers, so a layer mean may differ so much from its budget


@dataclass(frozen=True)
class Reach:
    """How many tokens a method uses for a budget, for an image of `tokens` visual tokens."""

    method: str
    asked: Budget
    budget: int
    tokens: int
    mean: float  # visual tokens as the budget counts them, averaged over layers
    nominal: bool = False  # whether the method uses its published counts, whatever their mean

    @property
    def is_compressed(self) -> bool:
        return self.budget < self.tokens

    @property
    def is_reached(self) -> bool:
        """Whether the method keeps to the budget.

        If not, `mean` is the smallest mean that it can reach, or that of its published counts.
        """
        return self.mean <= self.budget + _ROUNDING

    @property
    def note(self) -> str | None:
        """One line for the user if the image does not get the budget exactly."""
        if not self.is_compressed:
            return f"{ALL_TOKENS} (budget {self.asked}, {self.tokens} tokens)"
        if self.nominal and abs(self.mean - self.budget) > _ROUNDING:
            return f"{self.method} uses its published counts for {self.budget}: a layer mean of {self.mean:.1f}"
        if not self.is_reached:
            return (
                f"{self.method} cannot reach a budget of {self.budget} here: "
                f"the smallest layer mean it can reach is {self.mean:.1f} visual tokens"
            )
        if self.mean < self.budget - _ROUNDING:
            return f"{self.method} keeps fewer tokens than a budget of {self.budget}: a layer mean of {self.mean:.1f}"
        return None


def reach(method: str, budget: Budget, tokens: int, layers: int, frames: int = 1) -> Reach:
    """Check a budget with the method's own schedule in a decoder of `layers` layers; a video has several `frames`.

    >>> reach("fastv", Count(64), tokens=576, layers=8).is_reached
    False
    """
    count = budget.count_for(tokens, frames)
    schedule = create_method(method).schedule(layers, count, tokens)
    return reach_of(method, budget, count, tokens, schedule.mean, schedule.cached_mean)


def reach_of(method: str, asked: Budget, budget: int, tokens: int, mean: float, cached: float) -> Reach:
    """Check a budget with the layer means of prefill and of the cache; the method's schedule says which of them counts.

    >>> reach_of("ivc-prune", Count(64), 64, tokens=576, mean=320.0, cached=64.0).mean
    64.0
    """
    made = create_method(method)
    schedule = made.schedule(PUBLISHED_LAYERS, budget, tokens)  # what it counts is the same at every depth
    counted = mean if schedule.counts_prefill else cached
    return Reach(method, asked, budget, tokens, counted, nominal=made.counts == "nominal")


def distinct_notes(reaches: Iterable[Reach]) -> list[str]:
    """The notes on some budgets, each once; images that a budget leaves uncompressed share one."""
    listed = list(reaches)
    largest: dict[Budget, Reach] = {}
    for one in listed:
        if not one.is_compressed and one.tokens > largest.setdefault(one.asked, one).tokens:
            largest[one.asked] = one
    said = [one if one.is_compressed else largest[one.asked] for one in listed]
    return list(dict.fromkeys(one.note for one in said if one.note is not None))


def is_capped(budget: Budget, image: ImageReport) -> bool:
    """Whether a budget that follows the image reached its maximum without the coverage that it is meant to reach."""
    if not isinstance(budget, Coverage) or image.missed is not None:
        return False
    most, first = budget.count_for(image.tokens, image.frames), image.stages[0]
    if image.budget < most or most == image.tokens or first.coverage is None:
        return False
    # A method that reduces inside the decoder starts with more tokens, whose coverage says nothing about so many.
    return len(first.kept) > image.budget or first.coverage < budget.level


def capped_note(budget: Budget, capped: int, shown: int, unit: str = "image") -> str:
    """One line about images on which a budget was capped.

    >>> capped_note(Budget.parse("auto"), 3, 20)
    'auto:0.9 reached its maximum on 3 of 20 images without covering enough; auto:0.9:LEAST:MOST sets another maximum'
    """
    level = ":".join(str(budget).split(":")[:2])
    return (
        f"{budget} reached its maximum on {capped:,} of {counted(shown, unit)} without covering enough; "
        f"{level}:LEAST:MOST sets another maximum"
    )
