"""Where the tokens of one image lie: one or several rectangular views, row by row, one after the other."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from covist.checks import require, require_shape


@dataclass(frozen=True)
class Grid:
    """The layout of an image's tokens. `views` holds (rows, columns) of each view in token order."""

    views: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        views = tuple((int(rows), int(columns)) for rows, columns in self.views)
        require(len(views) > 0, "Grid", "at least one view is needed")
        require(all(min(view) >= 1 for view in views), "Grid", f"rows and columns must be positive, got {views}")
        object.__setattr__(self, "views", views)

    @cached_property
    def size(self) -> int:
        """Number of tokens over all views."""
        return sum(rows * columns for rows, columns in self.views)

    def coordinates(self, device: torch.device | str = "cpu") -> Tensor:
        """Cell centres (x, y) in [0, 1]^2 -> [N, 2]. Every view has its own unit square."""
        parts = []
        for rows, columns in self.views:
            y = torch.arange(0.5, rows, dtype=torch.float32, device=device) / rows
            x = torch.arange(0.5, columns, dtype=torch.float32, device=device) / columns
            parts.append(torch.stack((x.expand(rows, columns), y[:, None].expand(rows, columns)), -1).view(-1, 2))
        return torch.cat(parts)

    def smooth(self, values: Tensor) -> Tensor:
        """3x3 binomial kernel, renormalised at borders, inside each view: [N] -> [N]."""
        require_shape("Grid.smooth", "values", values, (self.size,))
        return torch.cat([_binomial(view).flatten() for view in self.split(values)])

    def neighbour_similarity(self, cosines: Tensor) -> Tensor:
        """Mean cosine to the up/down/left/right neighbours that exist, given all pairs [N, N] -> [N]; 1 without any."""
        require_shape("Grid.neighbour_similarity", "cosines", cosines, (self.size, self.size))
        starts = accumulate((rows * columns for rows, columns in self.views), initial=0)
        means = []
        for start, view in zip(starts, self.views, strict=False):
            inside = slice(start, start + view[0] * view[1])
            pairs = cosines[inside, inside].unflatten(1, view).unflatten(0, view)
            means.append(_mean_over_neighbours(pairs).flatten())
        return torch.cat(means)

    def split(self, values: Tensor) -> list[Tensor]:
        """[N, ...] -> one [rows, columns, ...] per view."""
        parts = values.split([rows * columns for rows, columns in self.views])
        return [part.unflatten(0, view) for part, view in zip(parts, self.views, strict=True)]


def _binomial(image: Tensor) -> Tensor:
    """(1, 2, 1) is (1, 1) applied twice, in both directions; dividing by the weights present is for the borders."""
    layers = torch.stack([image, torch.ones_like(image)])  # [2, rows, columns]
    total, weight = _add_pairs(_add_pairs(layers, (2, 2), padding=(1, 1)), (2, 2), padding=(0, 0))
    return total / weight


def _mean_over_neighbours(pairs: Tensor) -> Tensor:
    """[rows, columns, rows, columns] -> [rows, columns]."""
    rows, columns = pairs.shape[:2]
    below = pairs.diagonal(1, 0, 2).diagonal(0, 0, 1)  # each cell with the one below it, [rows - 1, columns]
    beside = pairs.diagonal(0, 0, 2).diagonal(1, 0, 1)  # each cell with the one to its right, [rows, columns - 1]
    sums = []
    for values, window, padding in ((below, (2, 1), (1, 0)), (beside, (1, 2), (0, 1))):
        if values.numel():  # every value counts for both of its cells
            sums.append(_add_pairs(torch.stack([values, torch.ones_like(values)]), window, padding))
    if not sums:
        return pairs.new_ones(rows, columns)
    total, count = sum(sums[1:], sums[0])
    return total / count


def _add_pairs(layers: Tensor, window: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Sums of neighbouring cells under a `window` moved by one, zeros around: [layers, rows, columns]."""
    return avg_pool2d(layers, window, stride=1, padding=padding, divisor_override=1)
