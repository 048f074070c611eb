"""FastV: after two layers, keeps the tokens to which the last prompt token attends most."""

from __future__ import annotations

from torch import Tensor

from covist.contract.views import DecoderView
from covist.methods.inside import ScoreInside, attention_to_image, last_prompt_row
from covist.methods.published import register_published


@register_published
class FastV(ScoreInside):
    name = "fastv"
    cuts = (2,)
    reads_preceding_layer = True

    def score(self, view: DecoderView) -> Tensor:
        return attention_to_image(view, last_prompt_row(view))
