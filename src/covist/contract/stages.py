"""What became of an image, stage by stage: plain data for reports and drawings, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from covist.grid import Grid


@dataclass(frozen=True)
class StageReport:
    """An image's state from one depth on."""

    depth: int
    indices: Tensor  # [K] original content tokens of the representatives
    positions: Tensor  # [K] or [K, axes]
    weights: Tensor  # [K]
    withheld: float  # Eq. 15
    assignment: Tensor | None  # [tokens before] representative that stands for each token
    maps: dict[str, Tensor]  # evidence maps over the tokens before


@dataclass(frozen=True)
class ImageReport:
    """One image of a call."""

    sample: int
    grid: Grid
    tokens: int  # content tokens before compression
    markers: int  # newline tokens, kept in every layer
    budget: int
    tokens_per_layer: tuple[int, ...]
    stages: tuple[StageReport, ...]

    @property
    def mean_tokens(self) -> float:
        """Content tokens, averaged over the decoder's layers."""
        return sum(self.tokens_per_layer) / len(self.tokens_per_layer)
