"""Position spans other than the original one, for the paper's span studies."""

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.formulas.ops import round_half_up

SPAN_PER_TOKEN = 4.5


def resolve_span(config: CovistConfig, tokens: int, count: int) -> int:
    """How many positions an image of `tokens` tokens may occupy if `count` of them survive.

    "rule" is `min(N, round(4.5 K))`, which the cumulative rows (a)-(e) use; `None` is the full original span.
    """
    if config.position_span is None:
        return tokens
    if config.position_span == "rule":
        return min(tokens, round_half_up(SPAN_PER_TOKEN * count))
    return min(tokens, int(config.position_span))


def compress_positions(positions: Tensor, start: int | Tensor, span: int, tokens: int) -> Tensor:
    """Shrink integer positions [K] or [K, axes] proportionally towards `start`, from `tokens` places to `span`."""
    return start + torch.div((positions - start) * span, tokens, rounding_mode="floor")


def contiguous_positions(positions: Tensor) -> Tensor:
    """Renumber positions [K] in their order, or [K, axes] in token order, contiguously from the smallest."""
    if positions.dim() == 1:
        return positions.min() + positions.argsort().argsort()
    order = torch.arange(positions.shape[0], device=positions.device)
    return positions.min() + order[:, None].expand_as(positions)
