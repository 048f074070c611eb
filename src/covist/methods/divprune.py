"""DivPrune: the tokens that lie farthest apart."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.methods._shared import cosine, first_best
from covist.methods.registry import register_method


@register_method
class DivPrune(Method):
    name = "divprune"
    default_positions = "reindex"
    info = MethodInfo(
        paper="DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models (CVPR 2025)",
        acts="before the decoder",
        signals="projected embeddings",
        budget="exactly K in every layer",
        goes_by="diversity",
        needs=("embeddings",),
        licence="CC-BY-NC 4.0",
        published=(
            "Distance 1 - cosine of projected embeddings; the first token is the one whose nearest other token is "
            "farthest, then always the one with the largest minimum distance to those chosen; ties go to the first "
            "index."
        ),
        ours=(
            "A chosen token is never chosen again (exact duplicates could be, in the original). Newline markers are "
            "not part of the pool."
        ),
        checked="golden: divprune (order of choice at 192, 128 and 64)",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        return farthest_tokens(1 - cosine(image.signals.embeddings), count)


def farthest_tokens(distance: Tensor, count: int) -> Tensor:
    """Greedy max-min over distances [N, N] -> [count] in the order of choice."""
    to_others = distance.clone().fill_diagonal_(torch.inf)
    chosen = [first_best(to_others.amin(0))]
    nearest = distance[chosen[0]].clone()
    nearest[chosen[0]] = -torch.inf
    for _ in range(count - 1):
        best = first_best(nearest)
        chosen.append(best)
        nearest = torch.minimum(nearest, distance[best])
        nearest[best] = -torch.inf
    return torch.stack(chosen)
