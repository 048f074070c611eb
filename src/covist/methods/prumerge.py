"""PruMerge and PruMerge+: outliers of the class attention take their neighbours in, one token carries the rest."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo, Outcome
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.methods._shared import cosine, largest, received_attention, without
from covist.methods.registry import register_method
from covist.state import VisualState

NEIGHBOURS = 32
PAPER = "LLaVA-PruMerge: Adaptive Token Reduction for Efficient Large Multimodal Models (ICCV 2025)"


@register_method
class PruMerge(Method):
    name = "prumerge"
    default_positions = "reindex"
    encoder_layers = (-1,)
    writes_content = True
    info = MethodInfo(
        paper=PAPER,
        acts="before the decoder",
        signals="class query and keys of the last encoder layer, encoder features, projector",
        budget="exactly K in every layer, the extra token counted",
        licence="Apache-2.0",
        published=(
            "Attention and keys come from the last encoder layer, heads not split. Every kept token adds the "
            "attention-weighted sum of its 32 nearest others (kept or not); one extra token is the attention-weighted "
            "sum of all that are not kept."
        ),
        ours=(
            "The count is fixed, as in comparison tables: the K - 1 largest instead of the outliers. Raster order; the "
            "extra token sits at the last index that nobody kept. Without a class token: the mean attention received."
        ),
        checked="golden: prumerge (attention, kept tokens at 192, 128 and 64, merged features at 128 and 64)",
    )

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Outcome:
        signals = image.signals
        attention, keys = last_layer(signals)
        kept = self.choose(attention, count - 1)
        removed = without(kept, state.count)
        hidden = signals.hidden.float()
        similarity = cosine(keys[kept], keys)
        similarity[torch.arange(len(kept)), kept] = -torch.inf
        nearest = similarity.topk(min(NEIGHBOURS, state.count - 1), dim=-1).indices  # [K - 1, 32]
        share = torch.zeros_like(similarity).scatter_(1, nearest, attention[nearest])
        extra = attention[removed] @ hidden[removed]
        merged = signals.project(torch.cat([hidden[kept] + share @ hidden, extra[None]]).to(signals.hidden.dtype))
        features = state.features.clone()
        places = torch.cat([kept, removed[-1:]])
        features[places] = merged.to(features.dtype)
        return Outcome(state.with_features(features).restrict(places.sort().values))

    def choose(self, attention: Tensor, count: int) -> Tensor:
        return largest(attention, count)


@register_method
class PruMergePlus(PruMerge):
    name = "prumerge-plus"
    info = replace(
        PruMerge.info,
        published=f"{PruMerge.info.published} Evenly spaced tokens join the outliers a > Q3 + 1.5 (Q3 - Q1).",
        ours=(
            "The count is fixed: the outliers (at most K - 1), and a spacing solved for the rest. Order and extra "
            "token as for PruMerge."
        ),
        checked="golden: prumerge (outliers, kept tokens and merged features at the adaptive count)",
    )

    def choose(self, attention: Tensor, count: int) -> Tensor:
        first, third = attention.quantile(0.25), attention.quantile(0.75)
        outliers = min(int((attention > third + 1.5 * (third - first)).sum()), count)
        top = largest(attention, outliers)
        remaining, spaced = without(top, len(attention)), count - outliers
        return torch.cat([top, remaining[torch.arange(spaced, device=top.device) * len(remaining) // max(1, spaced)]])


def last_layer(signals: ImageSignals) -> tuple[Tensor, Tensor]:
    """Class attention [N] and keys [N, width] of the last encoder layer, heads not split."""
    if not signals.layers:
        return received_attention(signals), signals.keys
    layer = signals.layers[max(signals.layers)]
    attention = replace(layer, heads=1).class_row()[:, 0]  # [tiles, patches]
    return signals.packed(attention), layer.keys.flatten(0, 1)[signals.pack]
