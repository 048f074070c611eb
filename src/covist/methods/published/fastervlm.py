"""FasterVLM: the tokens with the most class attention."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.methods.registry import register_method
from covist.methods.shared import largest, received_attention


@register_method
class FasterVLM(Method):
    name = "fastervlm"
    default_positions = "reindex"
    info = MethodInfo(
        paper=(
            "[CLS] Attention is All You Need for Training-Free Visual Token Pruning: Make VLM Inference Faster (2024)"
        ),
        acts="before the decoder",
        signals="class attention",
        budget="exactly K in every layer",
        criterion="attention",
        needs=("class-attention",),
        licence="Apache-2.0",
        published=(
            "Tokens are ranked by the head-mean class attention of the layer that feeds the projector and stay in "
            "spatial order; nothing is merged."
        ),
        ours="Without a class token, the mean received attention is used.",
        checked="golden: fastervlm (kept tokens at 192, 128 and 64)",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        return largest(received_attention(image.signals), count)
