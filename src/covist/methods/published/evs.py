"""EVS: keeps the first frame and the tokens that changed most since the frame before."""

from __future__ import annotations

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
        change, grid = self._change(image), image.grid
        numbers = grid.view_numbers(change.device)
        is_first = numbers == numbers[0]
        if grid.relation == "frames" and count >= int(is_first.sum()):
            change = change.masked_fill(is_first, torch.inf)
        return largest(change, count)

    def _change(self, image: ImageContext) -> Tensor:
        """How much each token has changed [N]."""
        signals, grid = image.signals, image.grid
        whole = grid.whole if isinstance(grid, PartialGrid) else grid
        shown = signals.read_pixels() if self.space == "pixels" and signals.read_pixels is not None else []
        if len(shown) != len(whole.views):
            return change_of_embeddings(by_frame(signals.embeddings.float(), grid)).flatten()
        change = change_of_pixels(shown, whole).to(signals.embeddings.device)
        return change[torch.tensor(grid.cells)] if isinstance(grid, PartialGrid) else change


def change_of_embeddings(tokens: Tensor) -> Tensor:
    """1 - cosine of tokens [F, n, d] to those before, of the first frame to its mean -> [F, n]."""
    before = torch.cat([tokens[:1].mean(1, keepdim=True).expand_as(tokens[:1]), tokens[:-1]])
    return 1 - same_place_cosines(before, tokens)


def change_of_pixels(shown: list[Tensor], grid: Grid) -> Tensor:
    """Mean absolute difference of each token's pixels [3, h, w] to those one frame earlier -> [N].

    A first frame, and every view of an image, is compared with its mean.
    """
    changes, before = [], None
    for (rows, columns), view in zip(grid.views, shown, strict=True):
        own = view.float()
        reference = own.mean((1, 2), keepdim=True) if before is None else before
        changes.append(adaptive_avg_pool2d((own - reference).abs(), (rows, columns)).mean(0).flatten())
        before = own if grid.relation == "frames" else None
    return torch.cat(changes)
