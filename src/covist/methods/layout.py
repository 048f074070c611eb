"""Geometry of an image's token grid: any number of even cells, windows, and neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from covist.formulas.ops import round_half_up
from covist.grid import Grid, PartialGrid

NO_CELL = NO_TOKEN = -1


def allot(total: int, sizes: list[int]) -> list[int]:
    """Split `total` into integers in proportion to `sizes`; the largest remainders get the rest."""
    whole = sum(sizes)
    parts = [total * size // whole for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda i: -(total * sizes[i] % whole))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def even_cells(grid: Grid, count: int) -> tuple[Tensor, Tensor]:
    """Divide the grid into `count` near-square cells -> (cell of each token [N], middle token of each cell [count]).

    Views share the count in proportion to their tokens; the tokens of a view that gets none belong to no cell (-1).
    """
    cells: list[Tensor] = []
    middles: list[Tensor] = []
    first_cell = first_token = 0
    for (rows, columns), places in zip(grid.views, allot(count, [r * c for r, c in grid.views]), strict=True):
        cell, middle = _cells_of_view(rows, columns, places)
        cells.append(torch.where(cell == NO_CELL, cell, cell + first_cell))
        middles.append(middle + first_token)
        first_cell, first_token = first_cell + places, first_token + rows * columns
    return torch.cat(cells), torch.cat(middles)


def windows(grid: Grid, per_side: int, device: torch.device | str = "cpu") -> Tensor:
    """The window of each token [N]; every view has `per_side` x `per_side` windows, numbered view by view."""
    column, row = (grid.coordinates(device)[:, :2] * per_side).long().unbind(-1)
    return (grid.view_numbers(device) * per_side + row) * per_side + column


def _cells_of_view(rows: int, columns: int, places: int) -> tuple[Tensor, Tensor]:
    """Bands of rows, each with its own number of columns, so that any number of places can be met exactly."""
    if places == 0:
        return torch.full((rows * columns,), NO_CELL), torch.empty(0, dtype=torch.long)
    bands = round_half_up(math.sqrt(places * rows / columns))
    bands = min(max(bands, math.ceil(places / columns), 1), rows, places)
    cells, middles, first_cell = [], [], 0
    for band, across in enumerate(allot(places, [1] * bands)):
        top, middle_row, bottom = _interval(band, bands, rows)
        cells.append((first_cell + torch.arange(columns) * across // columns).repeat(bottom - top))
        middles += [middle_row * columns + _interval(cell, across, columns)[1] for cell in range(across)]
        first_cell += across
    return torch.cat(cells), torch.tensor(middles)


def _interval(part: int, parts: int, length: int) -> tuple[int, int, int]:
    """First place, middle place and end of interval number `part` of `parts` even intervals over `length` places."""
    first, end = -(-part * length // parts), -(-(part + 1) * length // parts)
    return first, max(first, (2 * part + 1) * length // (2 * parts)), end


def neighbours(grid: Grid, steps: Sequence[tuple[int, int]]) -> Tensor:
    """The tokens at some steps (rows, columns) from each token in its view [N, steps]; NO_TOKEN if there is none."""
    whole = whole_grid(grid)
    tables, first = [], 0
    for rows, columns in whole.views:
        row, column = torch.arange(rows)[:, None, None], torch.arange(columns)[:, None]
        down, right = torch.tensor(steps).T
        inside = (row + down >= 0) & (row + down < rows) & (column + right >= 0) & (column + right < columns)
        there = first + (row + down) * columns + column + right  # [rows, columns, steps]
        tables.append(there.masked_fill(~inside, NO_TOKEN).flatten(0, 1))
        first += rows * columns
    table = torch.cat(tables)
    if not isinstance(grid, PartialGrid):
        return table
    cells = cells_of(grid)
    numbers = torch.full((whole.size + 1,), NO_TOKEN)  # the last entry is for NO_TOKEN
    numbers[cells] = torch.arange(len(cells))
    return numbers[table[cells]]


def rows_and_columns(grid: Grid) -> Tensor:
    """Row and column of each token in its view [N, 2]."""
    sides = whole_grid(grid).views
    places = [torch.cartesian_prod(torch.arange(rows), torch.arange(columns)) for rows, columns in sides]
    return torch.cat(places)[cells_of(grid)]


def whole_grid(grid: Grid) -> Grid:
    """The grid itself, or the whole grid behind a partial one."""
    return grid.whole if isinstance(grid, PartialGrid) else grid


def cells_of(grid: Grid, device: torch.device | str = "cpu") -> Tensor:
    """The place of each token in the whole grid [N]."""
    if isinstance(grid, PartialGrid):
        return torch.tensor(grid.cells, device=device)
    return torch.arange(grid.size, device=device)
