"""Where the tokens of one image lie: one or several rectangular views, row by row, one after the other."""

from dataclasses import dataclass
from functools import cached_property

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
        return torch.cat([_binomial(view).flatten() for view in self._split(values)])

    def neighbour_similarity(self, unit_features: Tensor) -> Tensor:
        """Mean cosine to the existing up/down/left/right neighbours of unit rows [N, d] -> [N]; 1 without any."""
        require_shape("Grid.neighbour_similarity", "unit_features", unit_features, (self.size, None))
        return torch.cat([_mean_neighbour_cosine(view).flatten() for view in self._split(unit_features)])

    def _split(self, values: Tensor) -> list[Tensor]:
        """[N, ...] -> one [rows, columns, ...] per view."""
        parts = values.split([rows * columns for rows, columns in self.views])
        return [part.unflatten(0, view) for part, view in zip(parts, self.views, strict=True)]


def _binomial(image: Tensor) -> Tensor:
    """(1, 2, 1) is (1, 1) applied twice, in both directions; dividing by the weights present renormalises at borders."""
    layers = torch.stack([image, torch.ones_like(image)])  # [2, rows, columns]
    total, weight = _add_pairs(_add_pairs(layers, (2, 2), padding=(1, 1)), (2, 2), padding=(0, 0))
    return total / weight


def _mean_neighbour_cosine(view: Tensor) -> Tensor:
    """[rows, columns, d] -> [rows, columns]."""
    sums = []
    for dim, window, padding in ((0, (2, 1), (1, 0)), (1, (1, 2), (0, 1))):
        length = view.shape[dim] - 1
        if length > 0:
            cosine = torch.linalg.vecdot(view.narrow(dim, 0, length), view.narrow(dim, 1, length))
            # every cosine counts for both of its cells
            sums.append(_add_pairs(torch.stack([cosine, torch.ones_like(cosine)]), window, padding))
    if not sums:
        return view.new_ones(view.shape[:2])
    total, count = sum(sums[1:], sums[0])
    return total / count


def _add_pairs(layers: Tensor, window: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Sums of neighbouring cells under a `window` moved by one, zeros around: [layers, rows, columns]."""
    return avg_pool2d(layers, window, stride=1, padding=padding, divisor_override=1)
