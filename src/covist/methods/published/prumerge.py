"""PruMerge and PruMerge+: outliers of the class attention absorb their neighbours; one extra token holds the rest."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.shared import cosine, largest, received_attention, rewritten, without
from covist.reduction import Reduction
from covist.state import VisualState

NEIGHBOURS = 32
GRID_PER_OUTLIER = 3


@register_published
class PruMerge(Method):
    name = "prumerge"
    default_positions = "reindex"
    encoder_requests = (-1,)
    writes_content = True

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        attention, keys = last_layer(signals)
        kept = self.choose(attention, count - 1)
        merged = signals.project(merge_neighbours(signals.hidden, keys, attention, kept).to(signals.hidden.dtype))
        places = torch.cat([kept, without(kept, state.count)[-1:]])
        return Reduction(rewritten(state, places, merged).restrict(places.sort().values))

    def choose(self, attention: Tensor, count: int) -> Tensor:
        return largest(attention, count)


@register_published
class PruMergePlus(PruMerge):
    name = "prumerge-plus"

    def choose(self, attention: Tensor, count: int) -> Tensor:
        return fit_grid(largest(attention, len(attention)), count)


def with_grid(order: Tensor, outliers: int) -> Tensor:
    """The first `outliers` tokens of an order by attention [N], then the evenly spaced tokens for this number."""
    step = max(1, len(order) // outliers // GRID_PER_OUTLIER)
    grid = torch.arange(0, len(order) - 1, step, device=order.device)
    return torch.cat([order[:outliers], grid[~torch.isin(grid, order[:outliers])]])


def fit_grid(order: Tensor, count: int) -> Tensor:
    """As many outliers as fit into `count` together with their grid; the order [N] fills the remaining places."""
    fitting = [chosen for n in range(1, count + 1) if len(chosen := with_grid(order, n)) <= count]
    chosen = fitting[-1] if fitting else order[:0]
    others = order[~torch.isin(order, chosen)]
    return torch.cat([chosen, others[: count - len(chosen)]])


def merge_neighbours(hidden: Tensor, keys: Tensor, attention: Tensor, kept: Tensor) -> Tensor:
    """Kept tokens plus the contribution of their nearest tokens by key, then the extra token -> [kept + 1, v]."""
    hidden = hidden.float()
    similarity = cosine(keys[kept], keys)
    similarity[torch.arange(len(kept)), kept] = -torch.inf
    nearest = similarity.topk(min(NEIGHBOURS, len(keys) - 1), dim=-1).indices  # [kept, 32]
    share = torch.zeros_like(similarity).scatter_(1, nearest, attention[nearest])
    removed = without(kept, len(keys))
    return torch.cat([hidden[kept] + share @ hidden, (attention[removed] @ hidden[removed])[None]])


def last_layer(signals: ImageSignals) -> tuple[Tensor, Tensor]:
    """Class attention [N] and keys [N, width] of the last encoder layer, heads not split."""
    if not signals.layers:
        return received_attention(signals), signals.keys
    layer = signals.layers[max(signals.layers)]
    attention = replace(layer, heads=1).class_row()[:, 0]  # [tiles, patches]
    return signals.packed(attention), layer.keys.flatten(0, 1)[signals.pack]
