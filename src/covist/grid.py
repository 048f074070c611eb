"""Where the tokens of one image or video lie: rectangular views one after another, each row by row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from covist.checks import require, require_shape

Relation = Literal["aligned", "apart", "frames"]
"""How the views of a grid are related: "aligned" views show the same area (an overview and a sharper view), views
"apart" are parts of an image in an unknown arrangement, and "frames" are successive moments of a video."""

Kernel = Callable[[Tensor], Tensor]
"""A function that smooths one view: [rows, columns] -> [rows, columns]."""

FAR = 10.0
"""Distance between views that are apart, in side lengths of a view: far enough that no tokens of two views are near."""


@dataclass(frozen=True)
class Grid:
    """The layout of an image's tokens. `views` holds (rows, columns) of each view, in token order.

    relation: how the views are related: "aligned" views show the same area (an overview and a sharper view), views
        "apart" are parts of an image in an unknown arrangement, and "frames" are successive moments of a video

    >>> grid = covist.Grid(((2, 3),))
    >>> grid.size, grid.coordinates()[4].tolist()
    (6, [0.5, 0.75])
    """

    views: tuple[tuple[int, int], ...]
    relation: Relation = "aligned"

    def __post_init__(self) -> None:
        views = tuple((int(rows), int(columns)) for rows, columns in self.views)
        require(len(views) > 0, "Grid", "at least one view is needed")
        require(all(min(view) >= 1 for view in views), "Grid", f"rows and columns must be positive, got {views}")
        object.__setattr__(self, "views", views)

    @cached_property
    def size(self) -> int:
        """Number of tokens over all views."""
        return sum(rows * columns for rows, columns in self.views)

    @property
    def frames(self) -> int:
        """Number of moments of a video; 1 for an image."""
        return len(self.views) if self.relation == "frames" else 1

    @cached_property
    def matching_frames(self) -> int:
        """Number of moments of a video whose places can be compared; 1 for an image.

        It is 1, too, for a video in which masks have left different places in different frames.
        """
        frames = len(self.view_numbers().unique()) if self.relation == "frames" else 1
        if self.size % frames:
            return 1
        places = self.coordinates()[:, :2].unflatten(0, (frames, -1))  # [F, n, 2]
        return frames if bool((places == places[0]).all()) else 1

    def coordinates(self, device: torch.device | str = "cpu") -> Tensor:
        """Cell centres (x, y) in [0, 1]^2, [N, 2]; for a video (x, y, time), [N, 3].

        Every view has its own unit square; a video lasts one unit of time.
        """
        parts = []
        for rows, columns in self.views:
            y = torch.arange(0.5, rows, dtype=torch.float32, device=device) / rows
            x = torch.arange(0.5, columns, dtype=torch.float32, device=device) / columns
            parts.append(torch.stack((x.expand(rows, columns), y[:, None].expand(rows, columns)), -1).view(-1, 2))
        places = torch.cat(parts)
        if self.relation != "frames":
            return places
        return torch.cat([places, (self.view_numbers(device)[:, None] + 0.5) / self.frames], dim=1)

    def places(self, device: torch.device | str = "cpu") -> Tensor:
        """Coordinates for measuring distances, [N, 2 or 3]: views that are apart do not overlap."""
        if self.relation != "apart":
            return self.coordinates(device)
        return torch.cat([self.coordinates(device), FAR * self.view_numbers(device)[:, None]], dim=1)

    def view_numbers(self, device: torch.device | str = "cpu") -> Tensor:
        """The number of each token's view, [N]."""
        sizes = torch.tensor([rows * columns for rows, columns in self.views], device=device)
        return torch.arange(len(self.views), device=device).repeat_interleave(sizes, output_size=self.size)

    def smooth(self, values: Tensor, kernel: Kernel | None = None) -> Tensor:
        """Smooth each view with the 3x3 binomial kernel, renormalised at borders, or with `kernel`: [N] -> [N]."""
        require_shape("Grid.smooth", "values", values, (self.size,))
        return torch.cat([(kernel or _binomial)(view).flatten() for view in self.split(values)])

    def neighbour_similarity(self, cosines: Tensor) -> Tensor:
        """Mean cosine to the existing neighbours above, below, left and right: [N, N] -> [N]; 1 without neighbours."""
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

    def per_view(self, made: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """Apply a function [rows, columns, ...] -> [rows, columns, ...] to each view of values [N, ...]."""
        return torch.cat([made(view).flatten(0, 1) for view in self.split(values)])


def evenly(total: int, wanted: int) -> tuple[int, ...]:
    """At most `wanted` of the frames 0 to total - 1, evenly spaced, with the first and, if several, the last.

    >>> evenly(total=100, wanted=4)
    (0, 33, 66, 99)
    """
    count = min(wanted, total)
    return tuple(int(place * (total - 1) / max(1, count - 1) + 0.5) for place in range(count))


def _binomial(image: Tensor) -> Tensor:
    """(1, 2, 1) is (1, 1) applied twice, in both directions; dividing by the weights inside renormalises borders."""
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
    """Sums over a sliding `window`, with zeros around the border: [layers, rows, columns]."""
    return avg_pool2d(layers, window, stride=1, padding=padding, divisor_override=1)


@dataclass(frozen=True)
class PartialGrid(Grid):
    """A grid of which some tokens are masked, or were not encoded. The others form one row but keep their coordinates.

    Use `PartialGrid.of(whole, cells)`; `cells` are the indices of these, increasing.
    """

    whole: Grid = Grid(((1, 1),))
    cells: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, whole: Grid, cells: Sequence[int]) -> "PartialGrid":
        if isinstance(whole, PartialGrid):
            return cls.of(whole.whole, [whole.cells[cell] for cell in cells])
        return cls(((1, len(cells)),), whole.relation, whole, tuple(cells))

    @property
    def frames(self) -> int:
        return self.whole.frames

    def coordinates(self, device: torch.device | str = "cpu") -> Tensor:
        return self.whole.coordinates(device)[self._index(device)]

    def view_numbers(self, device: torch.device | str = "cpu") -> Tensor:
        return self.whole.view_numbers(device)[self._index(device)]

    def smooth(self, values: Tensor, kernel: Kernel | None = None) -> Tensor:
        """The same kernel, renormalised at every missing cell, as the binomial kernel is at borders."""
        require_shape("Grid.smooth", "values", values, (self.size,))
        sums, shares = (self.whole.smooth(self.spread(part), kernel) for part in (values, torch.ones_like(values)))
        return (sums / shares)[self._index(values.device)]

    def neighbour_similarity(self, cosines: Tensor) -> Tensor:
        require_shape("Grid.neighbour_similarity", "cosines", cosines, (self.size, self.size))
        index = self._index(cosines.device)
        sums, shares = (
            self.whole.neighbour_similarity(self.spread(self.spread(part).T).T)[index]
            for part in (cosines, torch.ones_like(cosines))
        )
        return (sums / shares).nan_to_num(nan=1.0)  # no neighbour is left

    def per_view(self, made: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """The same on the views of the whole grid, where missing cells hold the mean of the remaining ones."""
        index = self._index(values.device)
        filled = values.mean(0).repeat(self.whole.size, *[1] * (values.dim() - 1)).index_copy(0, index, values)
        return self.whole.per_view(made, filled)[index]

    def spread(self, values: Tensor) -> Tensor:
        """Put the rows of the remaining tokens [V, ...] into zeros for the whole grid [N, ...]."""
        return values.new_zeros(self.whole.size, *values.shape[1:]).index_copy(0, self._index(values.device), values)

    def _index(self, device: torch.device | str) -> Tensor:
        return torch.tensor(self.cells, device=device)
