"""Where the tokens of one image lie: one or several rectangular views, row by row, one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

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
            y = (torch.arange(rows, dtype=torch.float32, device=device) + 0.5) / rows
            x = (torch.arange(columns, dtype=torch.float32, device=device) + 0.5) / columns
            parts.append(torch.stack(torch.broadcast_tensors(x[None, :], y[:, None]), dim=-1).reshape(-1, 2))
        return torch.cat(parts)

    def smooth(self, values: Tensor) -> Tensor:
        """3x3 binomial kernel, renormalised at borders, inside each view: [N] -> [N]."""
        require_shape("Grid.smooth", "values", values, (self.size,))
        return torch.cat([_binomial(_binomial(view, 0), 1).flatten() for view in self._split(values)])

    def neighbour_similarity(self, unit_features: Tensor) -> Tensor:
        """Mean cosine to the existing up/down/left/right neighbours of unit rows [N, d] -> [N]; 1 without any."""
        require_shape("Grid.neighbour_similarity", "unit_features", unit_features, (self.size, None))
        return torch.cat([_mean_neighbour_cosine(view).flatten() for view in self._split(unit_features)])

    def _split(self, values: Tensor) -> list[Tensor]:
        """[N, ...] -> one [rows, columns, ...] per view."""
        parts = values.split([rows * columns for rows, columns in self.views])
        return [part.unflatten(0, view) for part, view in zip(parts, self.views, strict=True)]


def _binomial(image: Tensor, dim: int) -> Tensor:
    """One axis of the separable (1, 2, 1) kernel; dividing by the weights present renormalises at the borders."""
    length = image.shape[dim] - 1
    total, weight = 2 * image, torch.full_like(image, 2)
    for target, source in ((1, 0), (0, 1)):  # every cell receives its predecessor, then its successor
        total.narrow(dim, target, length).add_(image.narrow(dim, source, length))
        weight.narrow(dim, target, length).add_(1)
    return total / weight


def _mean_neighbour_cosine(view: Tensor) -> Tensor:
    """[rows, columns, d] -> [rows, columns]."""
    total, count = view.new_zeros(view.shape[:2]), view.new_zeros(view.shape[:2])
    for dim in (0, 1):
        length = view.shape[dim] - 1
        cosine = (view.narrow(dim, 0, length) * view.narrow(dim, 1, length)).sum(-1)
        for start in (0, 1):
            total.narrow(dim, start, length).add_(cosine)
            count.narrow(dim, start, length).add_(1)
    return torch.where(count > 0, total / count.clamp(min=1), torch.ones_like(total))


@dataclass(frozen=True)
class PartialGrid(Grid):
    """What is left of a grid when some of its tokens are masked. Its tokens form one line; their places stay.

    Use `PartialGrid.of(whole, cells)`; `cells` are the tokens of the whole grid that are left, increasing.
    """

    whole: Grid
    cells: tuple[int, ...]

    @classmethod
    def of(cls, whole: Grid, cells: Sequence[int]) -> "PartialGrid":
        return cls(((1, len(cells)),), whole, tuple(cells))

    def coordinates(self, device: torch.device | str = "cpu") -> Tensor:
        return self.whole.coordinates(device)[self._index(device)]

    def smooth(self, values: Tensor) -> Tensor:
        """The same kernel, renormalised at every missing cell as it is at borders."""
        require_shape("Grid.smooth", "values", values, (self.size,))
        return self._over_present(self.whole.smooth, values)

    def neighbour_similarity(self, unit_features: Tensor) -> Tensor:
        require_shape("Grid.neighbour_similarity", "unit_features", unit_features, (self.size, None))
        similarity = self._over_present(self.whole.neighbour_similarity, unit_features)
        return similarity.nan_to_num(nan=1.0)  # no neighbour is left

    def _over_present(self, average: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """A mean over cells of the whole grid, taken over the present ones alone (the others are zero in both)."""
        index = self._index(values.device)
        present = values.new_ones(self.size, *(1,) * (values.dim() - 1))
        sums, shares = (
            average(part.new_zeros(self.whole.size, *part.shape[1:]).index_copy(0, index, part))[index]
            for part in (values, present)
        )
        return sums / shares

    def _index(self, device: torch.device | str) -> Tensor:
        return torch.tensor(self.cells, device=device)
