"""SCoRe: the token with the most attention, then tokens with much attention that are far from those chosen."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.published import register_published
from covist.methods.shared import distances, expand, first_best, received_attention


@register_published
class SCoRe(Method):
    name = "score"
    default_positions = "reindex"
    options: ClassVar = {"alpha": "exponent of the class attention, at least 0; 0 is pure diversity"}

    def __init__(self, alpha: float = 0.8, **options: Any):
        super().__init__(**options)
        if not (isinstance(alpha, (int, float)) and alpha >= 0):
            raise CovistError(f"alpha={alpha!r}: choose a number of at least 0")
        self.alpha = alpha

    def select(self, image: ImageContext, count: int) -> Tensor:
        attention = received_attention(image.signals)
        return expand(first_best(attention)[None], distances(image.signals.hidden), count, attention.pow(self.alpha))
