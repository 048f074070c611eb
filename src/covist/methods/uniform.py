"""An even grid of tokens, chosen without looking at the image.

The grid is near-square for any count: bands of rows, each with its own number of columns.
"""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.methods.layout import even_cells
from covist.methods.registry import register_method


@register_method
class Uniform(Method):
    name = "uniform"
    default_positions = "reindex"
    info = MethodInfo(
        paper="none",
        acts="before the decoder",
        signals="none",
        budget="exactly K in every layer",
        criterion="nothing",
        needs=(),
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        return even_cells(image.grid, count)[1].to(image.positions.device)
