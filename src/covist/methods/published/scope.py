"""SCOPE: coverage of the encoder's features, times saliency."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.published import register_published
from covist.methods.shared import cosine, greedy_max_coverage, received_attention


@register_published
class Scope(Method):
    name = "scope"
    default_positions = "reindex"
    options: ClassVar = {"alpha": "exponent of the class attention, at least 0; 0 is pure coverage"}

    def __init__(self, alpha: float = 1.0, **options: Any):
        super().__init__(**options)
        if not (isinstance(alpha, (int, float)) and alpha >= 0):
            raise CovistError(f"alpha={alpha!r}: choose a number of at least 0")
        self.alpha = alpha

    def select(self, image: ImageContext, count: int) -> Tensor:
        saliency = received_attention(image.signals).pow(self.alpha)
        return greedy_max_coverage(cosine(image.signals.hidden), count, saliency)
