"""VisionDrop: VisionZip before the decoder, and the same by the image's own attention at three depths."""

from __future__ import annotations

import math

import torch

from covist.contract.views import DecoderView
from covist.methods.inside import ReduceInside, Stepped, attention_within_image
from covist.methods.published import register_published
from covist.methods.published.visionzip import VisionZip, absorbed, evenly_spaced
from covist.methods.shared import largest, rewritten, without
from covist.state import VisualState


@register_published
class VisionDrop(Stepped, ReduceInside, VisionZip):
    name = "visiondrop"
    cuts = (0, 8, 16, 24)
    shape = (48.0, 35.0, 26.0, 19.0)

    def reduced(self, state: VisualState, view: DecoderView, count: int) -> VisualState:
        places = self.contextual_places(count)
        dominant = largest(attention_within_image(view), count - places)
        targets, others = evenly_spaced(without(dominant, state.count), places)
        if len(targets):
            keys = view.keys(view.visual).mean(0)  # [K, head width]
            merged, nearest = absorbed(state.features, keys, targets, others)
            weights = state.weights[targets].index_add(0, nearest, state.weights[others])
            state = rewritten(state, targets, merged, weights)
        return state.restrict(torch.cat([dominant, targets]).sort().values)

    def contextual_places(self, count: int) -> int:
        return min(math.ceil(count / 8), count - 1)  # 6 of 48, 5 of 35, 4 of 26, 3 of 19
