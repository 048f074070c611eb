"""SCoRe: the token with the most attention, then tokens with much attention that are far from those chosen."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.registry import register_method
from covist.methods.shared import distances, expand, first_best, received_attention


@register_method
class SCoRe(Method):
    name = "score"
    default_positions = "reindex"
    options: ClassVar = {"alpha": "exponent of the class attention, at least 0; 0 is pure diversity"}
    info = MethodInfo(
        paper="SCoRe: Salience-Coverage Reduction for Vision Token Pruning in Vision-Language Models (CVPR 2026)",
        acts="before the decoder",
        signals="class attention, encoder features",
        budget="exactly K in every layer",
        criterion="diversity",
        needs=("class-attention", "encoder-features"),
        licence="no code",
        published=(
            "On encoder features (before the projector), the first token has the most class attention a; each next "
            "token has the largest a^alpha times its distance (1 - cosine) to the nearest chosen token, alpha = 0.8."
        ),
        ours=(
            "Written from a second-hand description; the authors released no code. Choices that it leaves open: a is "
            "the mean over heads in the layer that feeds the projector; tokens are in raster order and renumbered. "
            "Tiles form one pool. Without a class token, the mean received attention is used."
        ),
        checked="reference: SCoRe (kept tokens)",
    )

    def __init__(self, alpha: float = 0.8, **options: Any):
        super().__init__(**options)
        if not (isinstance(alpha, (int, float)) and alpha >= 0):
            raise CovistError(f"alpha={alpha!r}: choose a number of at least 0")
        self.alpha = alpha

    def select(self, image: ImageContext, count: int) -> Tensor:
        attention = received_attention(image.signals)
        return expand(first_best(attention)[None], distances(image.signals.hidden), count, attention.pow(self.alpha))
