"""SparseVLM+ (v2): the raters' attention without what the rotation alone explains."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.formulas.ops import round_half_up
from covist.methods._raters import PAPER, RatedInside, raters
from covist.methods._shared import largest
from covist.methods.registry import register_method

HEADS, OF_HEADS = 14, 32


@register_method
class SparseVLMPlus(RatedInside):
    name = "sparsevlm-plus"
    presets = {192: (300, 200, 118), 128: (238, 108, 60), 96: (246, 54, 28), 64: (66, 34, 20)}
    info = MethodInfo(
        paper=PAPER,
        acts="after layers 2, 6 and 15 of 32, earlier for small budgets",
        signals="input embeddings, attention of the rating text tokens, rotary angles",
        budget="layer average K by scaled presets",
        licence="Apache-2.0",
        published=(
            "As SparseVLM, but the attention is divided by that of a rotation-only layer (all-ones queries and keys), "
            "only the 14 of 32 heads with the most mass on the image are averaged, nothing is recycled, and original "
            "positions are kept."
        ),
        ours=(
            "Counts as for SparseVLM. The mass per head is measured after the division; other head counts scale the 14."
        ),
        checked="golden: sparsevlm_plus (rotation, mass of heads, score, kept tokens and positions at 192, 128 and 64)",
    )

    def score(self, view: DecoderView) -> Tensor:
        rows = raters(view)
        by_rotation = rotation_attention(view, rows)[:, view.visual]
        rated = (view.attention(rows)[..., view.visual] / by_rotation.clamp(min=1e-8)).mean(1)  # [heads, K]
        heads = max(1, round_half_up(HEADS * len(rated) / OF_HEADS))
        return rated[largest(rated.sum(-1), heads)].mean(0)


def rotation_attention(view: DecoderView, rows: Tensor) -> Tensor:
    """What attention would be by the rotation alone: all-ones queries and keys, causal -> [rows, n]."""
    ones = torch.ones(1, len(view.hidden), view.decoder.head_width, dtype=torch.float32, device=rows.device)
    ones = view.decoder.rotate(view.observed_layer, ones, view.rotary)[0]
    logits = ones[rows] @ ones.T * view.decoder.scale(view.observed_layer)
    future = torch.arange(len(ones), device=rows.device)[None] > rows[:, None]
    return logits.masked_fill(future, -torch.inf).softmax(-1)
