"""DivPrune: the tokens that lie farthest apart."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.methods.registry import register_method
from covist.methods.shared import distances, expand, first_best


@register_method
class DivPrune(Method):
    name = "divprune"
    default_positions = "reindex"
    info = MethodInfo(
        paper="DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models (CVPR 2025)",
        acts="before the decoder",
        signals="projected embeddings",
        budget="exactly K in every layer",
        criterion="diversity",
        needs=("embeddings",),
        licence="CC-BY-NC 4.0",
        published=(
            "The distance is 1 - cosine of projected embeddings. The first token is the one whose nearest other token "
            "is farthest; each next token has the largest minimum distance to those chosen. Ties go to the first index."
        ),
        ours=(
            "A chosen token is never chosen again (in the original, exact duplicates may be). Newline markers are not "
            "part of the pool."
        ),
        checked="golden: divprune (order of choice at 192, 128 and 64)",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        distance = distances(image.signals.embeddings)
        return expand(most_isolated(distance), distance, count)


def most_isolated(distance: Tensor) -> Tensor:
    """The token whose nearest other token is farthest, from distances [N, N] -> [1]."""
    to_others = distance.clone().fill_diagonal_(torch.inf)
    return first_best(to_others.amin(0))[None]
