"""PyramidDrop: drops half of the tokens at each of three depths."""

from __future__ import annotations

from torch import Tensor

from covist.contract.views import DecoderView
from covist.methods.inside import ScoreInside, attention_to_image, last_prompt_row
from covist.methods.published import register_published


@register_published
class PyramidDrop(ScoreInside):
    name = "pyramiddrop"
    default_positions = "reindex"
    cuts = (8, 16, 24)
    shape = (1.0, 0.5, 0.25)
    untouched_share = 0.54  # above 8 / 32 * 576 / 270, so that the published setting stays unchanged

    def score(self, view: DecoderView) -> Tensor:
        return attention_to_image(view, last_prompt_row(view))
