"""PriorTR: tokens to which the text attends more than the prior of the image explains."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.errors import CovistError
from covist.methods.inside import NominalCounts, ScoreInside, last_prompt_row
from covist.methods.registry import register_method

SMALLEST = 1e-10


@register_method
class PriorTR(NominalCounts, ScoreInside):
    name = "priortr"
    cuts = (3,)
    options: ClassVar = {
        "rows": "all: attention of all text after the image (LLaVA-1.5); last: of the last prompt token (LLaVA-1.6)"
    }
    info = MethodInfo(
        paper="Accelerating Multimodal Large Language Models with Prior-Corrected Token Reduction (ECCV 2026)",
        acts="before layer 3/32",
        signals="attention of the text after the image in the preceding layer",
        budget="layer average K: all tokens, then a solved count; counts=nominal keeps K after the cut",
        criterion="attention",
        needs=("decoder-attention",),
        licence="Apache-2.0",
        published=(
            "Tokens are dropped before layer 3 of 32, by the attention of layer 2, mean over heads. The prior Q is the "
            "row of the first token after the image; P is the mean of the rows from that token to the end (LLaVA-1.5) "
            "or the last row (LLaVA-1.6). Both are normalised to a sum of one over the image in float32; the score is "
            "P log(P / Q). K tokens stay after the cut, a layer mean of 228, 170 and 112 for 192, 128 and 64. Original "
            "positions."
        ),
        ours=(
            "The count after the cut is solved for the layer-mean budget unless counts=nominal; for other depths the "
            "layer is scaled. Every model uses the rows of LLaVA-1.5 unless rows=last, without later images and "
            "generated tokens. 1e-10 is added to both sums and to numerator and denominator of the ratio. Without text "
            "after the image, only the last prompt token remains, so all tokens score the same and the first ones stay."
        ),
        checked="reference: PriorTR (score and kept tokens; published layer means)",
    )

    def __init__(self, rows: Literal["all", "last"] = "all", **options: Any):
        super().__init__(**options)
        if rows not in ("all", "last"):
            raise CovistError(f"rows={rows!r}: choose 'all' or 'last'")
        self.rows = rows

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def score(self, view: DecoderView) -> Tensor:
        text = view.text if len(view.text) else last_prompt_row(view)
        rows = text if self.rows == "all" else torch.cat([text[:1], last_prompt_row(view)])
        attention = view.attention(rows).mean(0)[:, view.visual]  # [rows, K]
        prior = shares(attention[0])
        posterior = shares(attention.mean(0) if self.rows == "all" else attention[-1])
        return posterior * torch.log((posterior + SMALLEST) / (prior + SMALLEST))


def shares(attention: Tensor) -> Tensor:
    """Attention to the image [K], normalised to a sum of one."""
    return attention / (attention.sum() + SMALLEST)
