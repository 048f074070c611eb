"""VisionZip: dominant tokens by class attention; the rest is merged into evenly spaced contextual tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method
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
        contextual_places = self.contextual_places(count)
        dominant = largest(received_attention(signals), count - contextual_places - has_class)
        targets, others = evenly_spaced(without(dominant, state.count), contextual_places)
        kept = torch.cat([dominant, targets])
        if len(targets):
            keys = signals.keys.unflatten(-1, (signals.attention.shape[1], -1)).mean(1)  # [N, head width]
            merged, nearest = absorbed(signals.hidden, keys, targets, others)
            weights = state.weights[targets].index_add(0, nearest, state.weights[others])
            state = rewritten(state, targets, signals.project(merged.to(signals.hidden.dtype)), weights)
        if class_features is not None:
            state = rewritten(state, others[:1], signals.project(class_features[:1]))
            kept = torch.cat([kept, others[:1]])
        return Reduction(state.restrict(kept.sort().values))

    def contextual_places(self, count: int) -> int:
        """How many of `count` places are for merged tokens."""
        return count - max(1, round_half_up(DOMINANT_SHARE * count))


def evenly_spaced(tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Evenly spaced targets [count] among some tokens, and the others."""
    stride = max(1, len(tokens) // max(1, count))
    targets = tokens[::stride][:count]
    return targets, tokens[~torch.isin(tokens, targets)]


def absorbed(features: Tensor, keys: Tensor, targets: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Each target [C] plus the mean of the others that join it by the cosine of their keys [N, width].

    Returns the content [C, d] from features [N, d], and the target, below C, that each of the others has joined.
    """
    nearest = cosine(keys[others], keys[targets]).argmax(-1)
    means, _ = cluster_means(features[others], nearest, len(targets))
    return features[targets].float() + means, nearest
