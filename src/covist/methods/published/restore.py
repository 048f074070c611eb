"""RESTORE over HoloV, DivPrune or VisPruner: half of the budget is selected, half merged; attention is recalibrated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method, plain_rule
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.published import register_published
from covist.methods.published.divprune import DivPrune
from covist.methods.published.holov import HoloV
from covist.methods.published.vispruner import VisPruner
from covist.methods.shared import cluster_means, cosine, joined, largest, represented, without
from covist.reduction import Reduction
from covist.state import VisualState


class Restore(Method):
    """Half of the tokens come from the base method, half from merging the rest."""

    base: ClassVar[type[Method]]
    writes_content = True
    options: ClassVar = {"denser": "on: anchors are compared with denser tokens; off: with less dense ones"}

    def __init__(self, denser: bool = False, **options: Any):
        super().__init__(**options)
        if not isinstance(denser, bool):
            raise CovistError(f"denser={denser!r}: choose True or False")
        self.denser = denser
        self._selector = self.base()

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        half = count // 2
        kept = self._selector.select(image, half) if half else state.indices[:0]
        removed = without(kept, state.count)
        similarity = cosine(state.features[removed])
        anchors = distinctive(similarity, count - half, self.denser)
        cluster = joined(similarity[:, anchors], anchors)
        means, sizes = cluster_means(state.features[removed], cluster, len(anchors))
        places = removed[lower_medians(cluster, sizes.long())]
        return represented(state, removed, places, cluster, means)

    def attention_rule(self, decoder: Decoder) -> AttentionRule:
        weights = plain_rule(decoder.layers, decoder.heads)
        return replace(
            weights,
            distances=decoder.distances,
            distance_keys="all",
            mean_weights=frozenset({0}),
            decoding=weights,
        )


def distinctive(similarity: Tensor, count: int, denser: bool = False) -> Tensor:
    """Anchors [count]: dense tokens that resemble no token of lower (or higher) density, from cosines [R, R]."""
    density = similarity.sum(-1)
    compared = density[None] > density[:, None] if denser else density[None] < density[:, None]
    closest = similarity.masked_fill(~compared, -torch.inf).amax(-1)
    closest = torch.where(compared.any(-1), closest, torch.zeros_like(closest))
    return largest(density * (1 - closest), count)


def lower_medians(cluster: Tensor, sizes: Tensor) -> Tensor:
    """The lower-median member of each cluster: cluster numbers [R] with member counts [C] -> members [C]."""
    by_cluster = cluster.argsort(stable=True)
    return by_cluster[sizes.cumsum(0) - sizes + (sizes - 1) // 2]


for selector in (HoloV, DivPrune, VisPruner):
    attributes = {"__module__": __name__, "name": f"restore-{selector.name}", "base": selector}
    register_published(type(f"Restore{selector.__name__}", (Restore,), attributes))
