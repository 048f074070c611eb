"""ToMe on projected tokens: bipartite matching, size-weighted means, proportional attention."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method, MethodInfo, Outcome, plain_rule
from covist.contract.views import ImageContext
from covist.methods._shared import cosine
from covist.methods.registry import register_method
from covist.state import VisualState


@register_method
class ToMe(Method):
    name = "tome"
    default_positions = "reindex"
    writes_content = True
    info = MethodInfo(
        paper="Token Merging: Your ViT But Faster (ICLR 2023)",
        acts="before the decoder, and log size on every attention logit",
        signals="projected embeddings",
        budget="exactly K in every layer",
        licence="CC-BY-NC 4.0",
        published=(
            "Even tokens look for their most similar odd token; the best edges are merged, at most half of the tokens "
            "per round; content is the size-weighted mean, and log size is added to every logit of a merged key."
        ),
        ours=(
            "The original merges inside the encoder, by its keys. Here the projected tokens are merged round by round "
            "until K are left, by their own cosine, and the decoder's attention is proportional: CoViST's attention "
            "without distance and gains. A merged token sits at its odd token's index, and tokens stay in raster order "
            "between rounds."
        ),
        checked="golden: tome (features, sizes and assignment after one round and after 24)",
    )

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Outcome:
        features, sizes, indices = state.features.float(), state.weights, state.indices
        stands_for = state.indices  # original token -> original token that represents it
        while len(indices) > count:
            sources, targets = matching(features, min(len(indices) - count, len(indices) // 2))
            weighted = features * sizes[:, None]
            weighted = weighted.index_add(0, targets, weighted[sources])
            sizes = sizes.index_add(0, targets, sizes[sources])
            forward = state.indices.clone()
            forward[indices[sources]] = indices[targets]
            stands_for = forward[stands_for]
            left = torch.ones_like(indices, dtype=torch.bool)
            left[sources] = False
            features, sizes, indices = (weighted / sizes[:, None])[left], sizes[left], indices[left]
        merged = state.restrict(indices).replace(features=features.to(state.features.dtype), weights=sizes)
        return Outcome(merged, assignment=torch.searchsorted(indices, stands_for))

    def attention_rule(self, decoder: Decoder) -> AttentionRule:
        return plain_rule(decoder.layers, decoder.heads)


def matching(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best edges from even to odd tokens [T, d] -> (sources, targets), both [count]."""
    best, target = cosine(features[::2], features[1::2]).max(-1)
    edges = best.argsort(descending=True, stable=True)[:count]
    return 2 * edges, 2 * target[edges] + 1
