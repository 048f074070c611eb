"""VisPruner: half of the tokens by class attention, half by removing duplicates."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.published import register_published
from covist.methods.shared import cosine, largest, received_attention

DELETED_PER_ROUND = 8


@register_published
class VisPruner(Method):
    name = "vispruner"
    default_positions = "reindex"
    options: ClassVar = {"important": "share of the budget that class attention chooses; the rest avoids duplicates"}

    def __init__(self, important: float = 0.5, **options: Any):
        super().__init__(**options)
        if not (isinstance(important, (int, float)) and 0 <= important <= 1):
            raise CovistError(f"important={important!r}: choose a share between 0 and 1")
        self.important = important

    def select(self, image: ImageContext, count: int) -> Tensor:
        important = int(count * self.important)
        order = largest(received_attention(image.signals), image.grid.size)
        diverse = remove_duplicates(order[important:], cosine(image.signals.hidden), count - important)
        return torch.cat([order[:important], diverse])


def remove_duplicates(residual: Tensor, similarity: Tensor, count: int) -> Tensor:
    """Thin out `residual` [R] to `count` tokens, given the cosines of all tokens [N, N]."""
    while len(residual) > count:
        even, odd = residual[::2], residual[1::2]
        if len(odd) == 0:  # one token is left and none is wanted
            return residual[:0]
        nearest = similarity[even][:, odd].amax(-1)
        order = nearest.argsort(descending=True, stable=True)
        deleted = min(DELETED_PER_ROUND, len(residual) - count, len(even))
        residual = torch.cat([even[order[deleted:]], odd])
    return residual
