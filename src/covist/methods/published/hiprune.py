"""HiPrune: tokens that receive attention in the middle of the vision tower, with neighbours, then those at its end."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead
from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.layout import neighbours
from covist.methods.published import register_published
from covist.methods.shared import largest, tile_shares

OBJECTS, WHOLE = EncoderRead("received", 8 / 24, without_class=15 / 32), EncoderRead("received")
BESIDE = ((0, -1), (0, 1), (-1, 0), (1, 0))
GROUP = 1 + len(BESIDE)  # an anchor and its buffers


@register_published
class HiPrune(Method):
    name = "hiprune"
    default_positions = "reindex"
    encoder_requests = (OBJECTS, WHOLE)
    options: ClassVar = {"alpha": "share of the budget for anchors with their neighbours, from 0 to 1"}

    def __init__(self, alpha: float = 0.1, **options: Any):
        super().__init__(**options)
        if not (isinstance(alpha, (int, float)) and 0 <= alpha <= 1):
            raise CovistError(f"alpha={alpha!r}: choose a share between 0 and 1")
        self.alpha = alpha

    def select(self, image: ImageContext, count: int) -> Tensor:
        objects, whole = (image.signals.read(request)[0] for request in (OBJECTS, WHOLE))
        beside = neighbours(image.grid, BESIDE).to(whole.device)
        shares = tile_shares(image.signals, count)
        return torch.cat([self._of_tile(members, objects, whole, beside, share) for members, share in shares])

    def _of_tile(self, members: Tensor, objects: Tensor, whole: Tensor, beside: Tensor, count: int) -> Tensor:
        """The `count` tokens that stay of the `members` of a tile."""
        anchors = members[largest(objects[members], round(count * self.alpha / GROUP))]
        buffers = beside[anchors].flatten()
        chosen = unique(torch.cat([anchors, buffers[torch.isin(buffers, members)]]))[:count]
        others = members[~torch.isin(members, chosen)]
        return torch.cat([chosen, others[largest(whole[others], count - len(chosen))]])


def unique(tokens: Tensor) -> Tensor:
    """Tokens [n] without repetitions, in the same order."""
    again = (tokens[:, None] == tokens).tril(-1).any(-1)
    return tokens[~again]
