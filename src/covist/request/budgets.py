"""Where a budget cannot be taken literally: above the token count, and below what a method can reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from covist.methods.create import create_method
from covist.schedule import resolve_budget

ALL_TOKENS = "a budget of all tokens or more leaves the image uncompressed"
_ROUNDING = 0.5  # counts are whole numbers, so a layer mean may lie this far from its budget


@dataclass(frozen=True)
class Reach:
    """What a method makes of a budget for an image of `tokens` visual tokens."""

    method: str
    asked: int | float | str
    budget: int
    tokens: int
    mean: float  # visual tokens that the schedule leaves in the cache, averaged over layers

    @property
    def is_compressed(self) -> bool:
        return self.budget < self.tokens

    @property
    def is_reached(self) -> bool:
        """Whether the method keeps as few tokens as it was asked to; if not, `mean` is the fewest that it can."""
        return self.mean <= self.budget + _ROUNDING

    @property
    def note(self) -> str | None:
        """One line for the user where the budget is not what the image gets."""
        if not self.is_compressed:
            return f"{ALL_TOKENS} ({self.asked} asked for, {self.tokens} there)"
        if not self.is_reached:
            return (
                f"{self.method} cannot reach a budget of {self.budget} here: "
                f"the smallest layer mean it can run at is {self.mean:.1f} visual tokens"
            )
        if self.mean < self.budget - _ROUNDING:
            return f"{self.method} keeps fewer tokens than a budget of {self.budget}: a layer mean of {self.mean:.1f}"
        return None


def reach(method: str, budget: int | float | str, tokens: int, layers: int, frames: int = 1) -> Reach:
    """Judge a budget by the method's own schedule in a decoder of `layers` layers; a video has several `frames`.

    >>> reach("fastv", 64, tokens=576, layers=8).is_reached
    False
    """
    count = resolve_budget(budget, tokens, frames)
    return Reach(method, budget, count, tokens, create_method(method).schedule(layers, count, tokens).cached_mean)


def distinct_notes(reaches: Iterable[Reach]) -> list[str]:
    """What there is to say about some budgets, each line once."""
    return list(dict.fromkeys(one.note for one in reaches if one.note is not None))
