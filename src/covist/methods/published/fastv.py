"""FastV: after two layers, keeps the tokens to which the last prompt token attends most."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.methods.inside import ScoreInside, attention_to_image, last_prompt_row
from covist.methods.registry import register_method


@register_method
class FastV(ScoreInside):
    name = "fastv"
    cuts = (2,)
    info = MethodInfo(
        paper=(
            "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large "
            "Vision-Language Models (ECCV 2024)"
        ),
        acts="before layer 2/32",
        signals="attention of the last prompt token in the preceding layer",
        budget="layer average K: all tokens, then a solved count",
        criterion="attention",
        needs=("decoder-attention",),
        licence="no licence file",
        published=(
            "Tokens are dropped before layer 2 of 32, by the attention of layer 1, mean over heads, in the row of the "
            "last prompt token only (the paper speaks of the average attention received). Nothing is pruned during "
            "decoding. Layers before the cut keep all tokens in their cache. Original positions."
        ),
        ours=(
            "The count after the cut follows from the layer-mean budget (576 tokens, 32 layers: 166, 98 and 30 for "
            "192, 128 and 64); for other depths the layer is scaled. Every image has its own pool."
        ),
        checked="golden: fastv (score, kept tokens and positions at 192, 128 and 64)",
    )

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def score(self, view: DecoderView) -> Tensor:
        return attention_to_image(view, last_prompt_row(view))
