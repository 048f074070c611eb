"""SparseVLM (v1.5): text tokens rate the image, and dropped tokens are recycled into cluster means."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.views import DecoderView
from covist.methods.density import density_peaks
from covist.methods.inside import attention_to_image
from covist.methods.published import register_published
from covist.methods.published._raters import RatedInside, raters
from covist.methods.shared import cluster_means, largest, rewritten
from covist.state import VisualState

RECYCLED_SHARE, TOKENS_PER_CLUSTER = 0.3, 10


@register_published
class SparseVLM(RatedInside):
    name = "sparsevlm"
    default_positions = "reindex"
    writes_content = True
    presets = {192: (300, 200, 110), 128: (303, 110, 36), 96: (238, 48, 26), 64: (66, 30, 17)}

    def score(self, view: DecoderView) -> Tensor:
        return attention_to_image(view, raters(view))

    def reduced(self, state: VisualState, view: DecoderView, count: int) -> VisualState:
        order = largest(self.score(view), state.count)
        places, clusters = split_places(state.count, count)
        pool = order[places : places + recycled(state.count - places)]
        kept = order[:places]
        if clusters:
            centres, cluster = density_peaks(state.features[pool], clusters, neighbours=clusters)
            means, _ = cluster_means(state.features[pool], cluster, clusters)
            weights = state.weights.new_zeros(clusters).index_add_(0, cluster, state.weights[pool])
            state = rewritten(state, pool[centres], means, weights)
            kept = torch.cat([kept, pool[centres]])
        return state.restrict(kept.sort().values)


def recycled(removed: int) -> int:
    """How many of the removed tokens enter the clusters."""
    return int(RECYCLED_SHARE * removed) + 1


def split_places(tokens: int, count: int) -> tuple[int, int]:
    """Divide `count` places into (kept tokens, recycled tokens)."""
    for kept in range(count - 1, 0, -1):
        clusters = min(recycled(tokens - kept) // TOKENS_PER_CLUSTER + 1, count // 2)
        if kept + clusters <= count:
            return kept, count - kept
    return count, 0
