"""VTW: all visual tokens leave the decoder at some depth."""

from __future__ import annotations

from torch import Tensor

from covist.contract.views import DecoderView, ImageContext
from covist.methods.inside import ChooseInside
from covist.methods.layout import even_cells
from covist.methods.published import register_published
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState


@register_published
class VTW(ChooseInside):
    name = "vtw"

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        if budget >= tokens:
            return fixed_schedule(layers, tokens, tokens)
        whole, rest = divmod(layers * budget, tokens)  # layers that see all tokens, and what is left for the next one
        stages = {0: tokens, whole: rest}
        if rest and whole + 1 < layers:
            stages[whole + 1] = 0
        return Schedule(layers, tuple(stages.items()))

    def select(self, image: ImageContext, count: int) -> Tensor:
        return even_cells(image.grid, count)[1].to(image.positions.device)

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        return even_cells(view.signals.grid, count)[1].to(state.indices.device)
