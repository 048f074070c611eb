"""Choices between equals, which rounding decides (CONTRIBUTING.md, "Choices and ties")."""

from collections.abc import Iterable

from torch import Tensor


def contents(chosen: Iterable[int], copies: int) -> list[int]:
    """What the chosen tokens show, if every content occurs `copies` times in a row: any copy is as good as another."""
    return [index // copies for index in chosen]


def nearest_tie(scores: Tensor, count: int) -> float:
    """How far the `count` largest of each row [..., N] are from another choice, relative to the largest score."""
    ordered = scores.double().sort(-1, descending=True).values
    return float((ordered[..., count - 1] - ordered[..., count]).min() / scores.abs().max())
