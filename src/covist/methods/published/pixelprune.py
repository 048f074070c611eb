"""PixelPrune: patches that their neighbours predict do not enter the vision tower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext, PixelView
from covist.errors import CovistError
from covist.methods.published import register_published
from covist.methods.shared import largest

Distance = Callable[[Tensor], Tensor]
DISTANCES: dict[str, Distance] = {
    "max": lambda difference: difference.abs().amax(-1),
    "mae": lambda difference: difference.abs().mean(-1),
    "rmse": lambda difference: difference.square().mean(-1).sqrt(),
}
"""From the differences of two tokens' pixels [..., values]."""


@register_published
class PixelPrune(Method):
    name = "pixelprune"
    rates_patches = True
    options: ClassVar = {
        "threshold": "a token whose pixels, between 0 and 1, are no further from those predicted is not encoded",
        "distance": "max: the largest difference of a pixel; mae: the mean one; rmse: the root of the mean square",
    }

    def __init__(self, threshold: float = 0.0, distance: str = "max", **options: Any):
        super().__init__(**options)
        if not (isinstance(threshold, int | float) and 0 <= threshold < 1):
            raise CovistError(f"threshold={threshold!r}: choose a number from 0 to below 1")
        if distance not in DISTANCES:
            raise CovistError(f"distance={distance!r}: choose {', '.join(DISTANCES)}")
        self.threshold, self.distance = threshold, distance

    def rate_patches(self, pixels: PixelView) -> Tensor:
        if self.threshold and not pixels.in_range:
            raise CovistError(
                f"threshold={self.threshold}: the differences of pixels are known only with the processor; pass it to "
                "compress(), or set threshold=0"
            )
        return surprise(pixels.cells, self.threshold, DISTANCES[self.distance]) - self.threshold

    def select(self, image: ImageContext, count: int) -> Tensor:
        return largest(image.signals.patch_scores, count)


def surprise(cells: Tensor, threshold: float, distance: Distance) -> Tensor:
    """How far the pixels of each token [F, rows, columns, values] are from those predicted -> [F, rows, columns].

    Nothing predicts the first token of a frame, which is further away than any other.
    """
    found, before = [], None
    for frame in cells:
        far, before = _surprise_in_frame(frame, before, threshold, distance)
        found.append(far)
    far = torch.stack(found)
    far[:, 0, 0] = 1 + far.max()
    return far


def _surprise_in_frame(
    cells: Tensor, before: Tensor | None, threshold: float, distance: Distance
) -> tuple[Tensor, Tensor]:
    """The same of one frame [rows, columns, values], and what it looks like if predicted tokens are taken as predicted.

    before: what the frame before looks like; None if there is none

    A token depends on those to its left, above it and above its left, so a diagonal can be treated at once.
    """
    rows, columns = cells.shape[:2]
    seen, far = cells.clone(), cells.new_zeros(rows, columns)
    for diagonal in range(1, rows + columns - 1):
        row = torch.arange(max(0, diagonal - columns + 1), min(diagonal, rows - 1) + 1, device=cells.device)
        column = diagonal - row
        own, predicted = cells[row, column], _predicted(seen, row, column, threshold, distance)
        found = distance(own - predicted)
        if before is not None:
            earlier = before[row, column]
            since = distance(own - earlier)
            predicted = torch.where((since <= found)[:, None], earlier, predicted)
            found = torch.minimum(since, found)
        far[row, column] = found
        seen[row, column] = torch.where((found <= threshold)[:, None], predicted, own)
    return far, seen


def _predicted(seen: Tensor, row: Tensor, column: Tensor, threshold: float, distance: Distance) -> Tensor:
    """The token above if the one before it resembles the left one but not the one above; otherwise the left one."""
    up, back = (row - 1).clamp(min=0), (column - 1).clamp(min=0)
    left, above, corner = seen[row, back], seen[up, column], seen[up, back]
    goes_on_above = (distance(corner - left) <= threshold) & (distance(corner - above) > threshold)
    from_above = (column == 0) | goes_on_above & (row > 0)
    return torch.where(from_above[:, None], above, left)
