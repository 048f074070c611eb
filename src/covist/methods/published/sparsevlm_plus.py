"""SparseVLM+ (v2): the raters' attention, corrected for the effect of the rotation alone."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.views import DecoderView
from covist.formulas.ops import round_half_up
from covist.methods.published import register_published
from covist.methods.published._raters import RatedInside, raters
from covist.methods.shared import largest

HEADS, OF_HEADS = 14, 32
SMALLEST_LOGIT = 0.1  # of the one at distance 0; the published geometry stays above it


@register_published
class SparseVLMPlus(RatedInside):
    name = "sparsevlm-plus"
    presets = {192: (300, 200, 118), 128: (238, 108, 60), 96: (246, 54, 28), 64: (66, 34, 20)}

    def score(self, view: DecoderView) -> Tensor:
        rows = raters(view)
        rotation = rotation_logits(view, rows)
        rated = view.attention(rows)[..., view.visual] / rotation.clamp(min=SMALLEST_LOGIT * rotation_limit(view))
        return rated[strongest_heads(rated, round_half_up(HEADS * len(rated) / OF_HEADS))].mean((0, 1))


def rotation_logits(view: DecoderView, rows: Tensor) -> Tensor:
    """Logits of all-ones queries and keys between `rows` and the representatives: the rotation alone [rows, K]."""
    ones = torch.ones(len(view.hidden), view.decoder.head_width, dtype=torch.float32, device=rows.device)
    if view.rotary is not None:
        ones = view.decoder.rotate(view.observed_layer, ones[None], view.rotary)[0]
    return ones[rows] @ ones[view.visual].T * view.decoder.scale(view.observed_layer)


def rotation_limit(view: DecoderView) -> float:
    """The value of `rotation_logits` at distance 0."""
    return view.decoder.head_width * view.decoder.scale(view.observed_layer)


def strongest_heads(rated: Tensor, count: int) -> Tensor:
    """The heads with the most mass on the image, at least one: [heads, raters, K] -> [count]."""
    return largest(rated.sum((1, 2)), max(1, count))
