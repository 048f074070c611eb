"""PruMerge and PruMerge+: outliers of the class attention absorb their neighbours; one extra token holds the rest."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.methods.registry import register_method
from covist.methods.shared import cosine, largest, received_attention, without
from covist.reduction import Reduction
from covist.state import VisualState

NEIGHBOURS = 32
GRID_PER_OUTLIER = 3
PAPER = "LLaVA-PruMerge: Adaptive Token Reduction for Efficient Large Multimodal Models (ICCV 2025)"


@register_method
class PruMerge(Method):
    name = "prumerge"
    default_positions = "reindex"
    encoder_requests = (-1,)
    writes_content = True
    info = MethodInfo(
        paper=PAPER,
        acts="before the decoder",
        signals="class query and keys of the last encoder layer, encoder features, projector",
        budget="exactly K in every layer, including the extra token",
        criterion="attention",
        needs=("class-attention", "encoder-features"),
        licence="Apache-2.0",
        published=(
            "Attention and keys come from the last encoder layer, heads not split. Every kept token adds the "
            "attention-weighted sum of its 32 nearest others (kept or not); one extra token is the attention-weighted "
            "sum of all that are not kept."
        ),
        ours=(
            "The count is fixed, as in comparison tables: the K - 1 largest instead of the outliers. Tokens are in "
            "raster order; the extra token is at the last index that is not kept. Without a class token, the mean "
            "received attention is used."
        ),
        checked="golden: prumerge (attention, kept tokens at 192, 128 and 64, merged features at 128 and 64)",
    )

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        attention, keys = last_layer(signals)
        kept = self.choose(attention, count - 1)
        merged = signals.project(merge_neighbours(signals.hidden, keys, attention, kept).to(signals.hidden.dtype))
        features = state.features.clone()
        places = torch.cat([kept, without(kept, state.count)[-1:]])
        features[places] = merged.to(features.dtype)
        return Reduction(state.with_features(features).restrict(places.sort().values))

    def choose(self, attention: Tensor, count: int) -> Tensor:
        return largest(attention, count)


@register_method
class PruMergePlus(PruMerge):
    name = "prumerge-plus"
    info = replace(
        PruMerge.info,
        published=(
            f"{PruMerge.info.published} The n tokens with the most attention are joined by evenly spaced ones, one in "
            "every third of N / n, so that about three quarters of the tokens are a grid."
        ),
        ours=(
            "The budget rule: the authors' n is the number of outliers a > Q3 + 1.5 (Q3 - Q1), whatever count results. "
            "Here n is the largest for which n tokens, their grid and the extra token fit into K; remaining places go "
            "to the next tokens by attention. Order and extra token are as for PruMerge."
        ),
        checked="golden: prumerge (kept tokens and merged features at the authors' number of outliers)",
    )

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
