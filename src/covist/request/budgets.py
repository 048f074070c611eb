"""Budgets that an image does not get exactly: above its token count, or below what a method can reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from covist.budget import Budget
from covist.methods.create import create_method
from covist.methods.inside import PUBLISHED_LAYERS

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
    """The notes on some budgets, each once."""
    return list(dict.fromkeys(one.note for one in reaches if one.note is not None))
