"""FasterVLM: the tokens with the most class attention.

Paper: "[CLS] Attention is All You Need for Training-Free Visual Token Pruning: Make VLM Inference Faster", 2024.
Licence of the authors' code: Apache-2.0; written from a description of the algorithm.
Facts: head-mean class attention of the layer that feeds the projector, spatial order, nothing is merged.
"""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.methods._shared import largest, received_attention
from covist.methods.registry import register_method


@register_method
class FasterVLM(Method):
    name = "fastervlm"
    default_positions = "reindex"
    info = MethodInfo(
        paper="[CLS] Attention is All You Need for Training-Free Visual Token Pruning (2024)",
        acts="before the decoder",
        signals="class attention",
        budget="exactly K in every layer",
        licence="Apache-2.0",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        return largest(received_attention(image.signals), count)
