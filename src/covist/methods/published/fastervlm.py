"""FasterVLM: the tokens with the most class attention."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.shared import largest, received_attention


@register_published
class FasterVLM(Method):
    name = "fastervlm"
    default_positions = "reindex"

    def select(self, image: ImageContext, count: int) -> Tensor:
        return largest(received_attention(image.signals), count)
