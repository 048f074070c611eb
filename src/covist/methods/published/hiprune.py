"""HiPrune: tokens that receive attention in the middle of the vision tower, with neighbours, then those at its end."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead
from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.layout import allot, neighbours
from covist.methods.registry import register_method
from covist.methods.shared import largest, tile_numbers

OBJECTS, WHOLE = EncoderRead("received", 8 / 24, without_class=15 / 32), EncoderRead("received")
BESIDE = ((0, -1), (0, 1), (-1, 0), (1, 0))
GROUP = 1 + len(BESIDE)  # an anchor and its buffers


@register_method
class HiPrune(Method):
    name = "hiprune"
    default_positions = "reindex"
    encoder_requests = (OBJECTS, WHOLE)
    options: ClassVar = {"alpha": "share of the budget for anchors with their neighbours, from 0 to 1"}
    info = MethodInfo(
        paper=(
            "HiPrune: Hierarchical Attention for Efficient Token Pruning in Vision-Language Models (ACL Findings 2026)"
        ),
        acts="before the decoder",
        signals="attention received at two encoder layers",
        budget="exactly K in every layer",
        criterion="attention",
        needs=("encoder-layers",),
        licence="MIT",
        published=(
            "Received attention is the mean over heads and all queries, including the class token's. Anchors are the "
            "round(K alpha / 5) tokens that receive most at layer 9 of 24 (Qwen: 16 of 32), alpha = 0.1; each brings "
            "its neighbours above, below, left and right. The other places go to the tokens that receive most at the "
            "layer that feeds the projector. Tiles share the budget."
        ),
        ours=(
            "Neighbours are those in the image's own grid: the original adds 1 and 24 to the index, so that the end of "
            "a row neighbours the beginning of the next, and clamps indices outside the image. The layer scales with "
            "the tower's depth; towers without a class token use Qwen's layer, and windowed ones the nearest layer "
            "that sees the whole image. Tiles share in proportion to their tokens, that is, evenly without padding. If "
            "anchors and neighbours exceed a small share, anchors come first."
        ),
        checked="reference: tests/reference/encoder.py (received attention, anchors, buffers, kept tokens)",
    )

    def __init__(self, alpha: float = 0.1, **options: Any):
        super().__init__(**options)
        if not (isinstance(alpha, (int, float)) and 0 <= alpha <= 1):
            raise CovistError(f"alpha={alpha!r}: choose a share between 0 and 1")
        self.alpha = alpha

    def select(self, image: ImageContext, count: int) -> Tensor:
        objects, whole = (image.signals.read(request)[0] for request in (OBJECTS, WHOLE))
        beside = neighbours(image.grid, BESIDE).to(whole.device)
        tile = tile_numbers(image.signals)
        sizes = tile.bincount().tolist()
        return torch.cat(
            [
                self._of_tile((tile == number).nonzero()[:, 0], objects, whole, beside, share)
                for number, share in enumerate(allot(count, sizes))
            ]
        )

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
