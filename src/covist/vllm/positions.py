"""The positions of a compressed prompt's tokens, before the rows of images add their own offsets."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from covist.vllm.item import Item


def remaining_positions(
    whole: Tensor, delta: int, placed: Iterable[tuple[int, Item]], one_axis: bool
) -> tuple[Tensor, int]:
    """Positions [axes, n] of a compressed prompt, and what to add to the index of a generated token to get its own.

    whole, delta: the same of the uncompressed prompt
    placed: where the tokens of each item begin in it, in order
    Every row of an item gets the position of its first embedding. Text keeps its own; on one axis it moves up if the
    method lets items take fewer positions.
    """
    parts, place, closed = [], 0, 0
    for start, item in placed:
        first = start + item.inside.start
        parts.append(whole[:, place:first] - closed)
        parts.append((whole[:, first : first + 1] - closed).expand(-1, item.rows))
        place = start + item.inside.stop
        closed += item.length - item.positions if one_axis else 0
    positions = torch.cat([*parts, whole[:, place:] - closed], dim=1)
    return positions, whole.shape[1] + delta - closed - positions.shape[1]
