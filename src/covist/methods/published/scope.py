"""SCOPE: coverage of the encoder's features, times saliency."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.registry import register_method
from covist.methods.shared import cosine, greedy_max_coverage, received_attention


@register_method
class Scope(Method):
    name = "scope"
    default_positions = "reindex"
    options: ClassVar = {"alpha": "exponent of the class attention, at least 0; 0 is pure coverage"}
    info = MethodInfo(
        paper="SCOPE: Saliency-Coverage Oriented Token Pruning for Efficient Multimodal LLMs (NeurIPS 2025)",
        acts="before the decoder",
        signals="class attention, encoder features",
        budget="exactly K in every layer",
        criterion="coverage",
        needs=("class-attention", "encoder-features"),
        licence="no licence file",
        published=(
            "On encoder features, not projected ones, the gain in facility-location coverage is multiplied by the "
            "class attention to the power alpha = 1."
        ),
        ours="Attention is the mean over heads, not the sum, which gives the same order of choice.",
        checked="golden: scope (order of choice at 192, 128 and 64)",
    )

    def __init__(self, alpha: float = 1.0, **options: Any):
        super().__init__(**options)
        if not (isinstance(alpha, (int, float)) and alpha >= 0):
            raise CovistError(f"alpha={alpha!r}: choose a number of at least 0")
        self.alpha = alpha

    def select(self, image: ImageContext, count: int) -> Tensor:
        saliency = received_attention(image.signals).pow(self.alpha)
        return greedy_max_coverage(cosine(image.signals.hidden), count, saliency)
