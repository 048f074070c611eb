"""V2Drop: drops the tokens that a layer hardly changes."""

from __future__ import annotations

from torch import Tensor

from covist.contract.views import DecoderView
from covist.methods.inside import ScoreInside
from covist.methods.published import register_published


@register_published
class V2Drop(ScoreInside):
    name = "v2drop"
    cuts = (3, 17, 22)
    shape = (1.0, 0.5, 1e-4)  # halves at the second cut; one token is left after the third
    reads_preceding_layer = True

    def score(self, view: DecoderView) -> Tensor:
        before, after = (states[view.visual].float() for states in (view.observed, view.hidden))
        return (after - before).norm(dim=-1)
