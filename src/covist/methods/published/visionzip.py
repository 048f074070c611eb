"""VisionZip: dominant tokens by class attention; the rest is merged into evenly spaced contextual tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.formulas.ops import round_half_up
from covist.methods.published import register_published
from covist.methods.shared import cluster_means, cosine, largest, received_attention, rewritten, without
from covist.reduction import Reduction
from covist.state import VisualState

DOMINANT_SHARE = 27 / 32


@register_published
class VisionZip(Method):
    name = "visionzip"
    default_positions = "reindex"
    writes_content = True

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        class_features = signals.class_features
        has_class = class_features is not None
        dominant_places = max(1, round_half_up(DOMINANT_SHARE * count))
        contextual_places = count - dominant_places
        dominant = largest(received_attention(signals), dominant_places - has_class)
        remaining = without(dominant, state.count)
        stride = max(1, len(remaining) // max(1, contextual_places))
        targets = remaining[::stride][:contextual_places]
        others = remaining[~torch.isin(remaining, targets)]
        kept = torch.cat([dominant, targets])
        if len(targets):
            merged, members = merge_context(signals, targets, others)
            state = rewritten(state, targets, merged, state.weights[targets] + members)
        if class_features is not None:
            state = rewritten(state, others[:1], signals.project(class_features[:1]))
            kept = torch.cat([kept, others[:1]])
        return Reduction(state.restrict(kept.sort().values))


def merge_context(signals: ImageSignals, targets: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings of the contextual tokens [C, d], and how many tokens each has absorbed [C]."""
    heads = signals.attention.shape[1]
    keys = signals.keys.unflatten(-1, (heads, -1)).mean(1)  # [N, head width]
    nearest = cosine(keys[others], keys[targets]).argmax(-1)
    means, members = cluster_means(signals.hidden[others], nearest, len(targets))
    merged = signals.hidden[targets].float() + means
    return signals.project(merged.to(signals.hidden.dtype)), members
