"""Dropping frames: the fewest evenly spaced frames that hold the budget, the baseline of every method for videos.

If the budget is no whole number of frames, the chosen ones are thinned out evenly. An image is a video of one frame.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.grid import evenly
from covist.methods.registry import register_method


@register_method
class Frames(Method):
    name = "frames"
    default_positions = "reindex"
    info = MethodInfo(
        paper="none",
        acts="before the decoder",
        signals="none",
        budget="exactly K in every layer",
        made_for="video",
        criterion="nothing",
        needs=(),
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        numbers = image.grid.view_numbers() if image.grid.frames > 1 else torch.zeros(image.grid.size)
        kept = _hold(numbers, count)
        return kept[list(evenly(len(kept), count))].to(image.positions.device)


def _hold(numbers: Tensor, count: int) -> Tensor:
    """The tokens of the fewest evenly spaced frames that hold `count`, given the frame of each token [N]."""
    frames = numbers.unique()
    for wanted in range(1, len(frames) + 1):
        kept = torch.isin(numbers, frames[list(evenly(len(frames), wanted))]).nonzero()[:, 0]
        if len(kept) >= count:
            break
    return kept
