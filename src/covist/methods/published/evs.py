"""EVS: keeps the first frame and the tokens that changed most since the frame before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.grid import Grid, PartialGrid
from covist.methods.frames import by_frame, same_place_cosines
from covist.methods.published import register_published
from covist.methods.shared import largest

Space = Literal["pixels", "embeddings"]


@register_published
class EVS(Method):
    name = "evs"
    options: ClassVar = {
        "space": "pixels: change is the mean absolute difference of pixels; embeddings: 1 - cosine of embeddings (ours)"
    }

    def __init__(self, space: Space = "pixels", **options: Any):
        super().__init__(**options)
        if space not in ("pixels", "embeddings"):
            raise CovistError(f"space={space!r}: choose pixels or embeddings")
        self.space = space

    def select(self, image: ImageContext, count: int) -> Tensor:
        signals, grid = image.signals, image.grid
        if self.space == "pixels" and signals.read_pixels is not None:
            change = change_of_pixels(signals.read_pixels, grid).to(signals.embeddings.device)
        else:
            change = change_of_embeddings(by_frame(signals.embeddings.float(), grid)).flatten()
        numbers = grid.view_numbers(change.device)
        first = (numbers == numbers[0]) if grid.relation == "frames" else torch.ones_like(numbers, dtype=torch.bool)
        if count >= int(first.sum()):
            change = change.masked_fill(first, torch.inf)
        return largest(change, count)


def change_of_embeddings(tokens: Tensor) -> Tensor:
    """1 - cosine of tokens [F, n, d] to those before, of the first frame to its mean -> [F, n]."""
    before = torch.cat([tokens[:1].mean(1, keepdim=True).expand_as(tokens[:1]), tokens[:-1]])
    return 1 - same_place_cosines(before, tokens)


def change_of_pixels(read_pixels: Callable[[], list[Tensor]], grid: Grid) -> Tensor:
    """Mean absolute difference of each token's pixels to those before; of a first frame or image to its mean -> [N]."""
    whole = grid.whole if isinstance(grid, PartialGrid) else grid
    changes, before = [], None
    for (rows, columns), shown in zip(whole.views, read_pixels(), strict=True):
        shown = shown.float()
        reference = shown.mean((1, 2), keepdim=True) if before is None else before
        changes.append(adaptive_avg_pool2d((shown - reference).abs(), (rows, columns)).mean(0).flatten())
        before = shown if whole.relation == "frames" else None
    change = torch.cat(changes)
    return change[torch.tensor(grid.cells)] if isinstance(grid, PartialGrid) else change
