"""GlobalCom2: the overview of an image decides how many tokens each of its crops keeps, and helps to choose them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.grid import Grid
from covist.methods.layout import cells_of, whole_grid
from covist.methods.published import register_published
from covist.methods.shared import group_shares, largest, received_attention

TEMPERATURE = 10.0
SMALLEST = 1e-12


@register_published
class GlobalCom2(Method):
    name = "globalcom2"
    default_positions = "reindex"
    encoder_requests = (-1,)

    def select(self, image: ImageContext, count: int) -> Tensor:
        logits = class_logits(image.signals)
        tiles = Tiles.of(image.grid)
        if tiles is not None:
            return guided(logits, image.grid, tiles, count)
        shares = group_shares(image.grid.view_numbers(logits.device), count)
        return torch.cat([members[largest(logits[members], share)] for members, share in shares])


def guided(logits: Tensor, grid: Grid, tiles: Tiles, count: int) -> Tensor:
    """The best `count` tokens of all tiles by their logits [N] and those of the overview."""
    cells = cells_of(grid, logits.device)
    overview = tiles.overview(logits.mean().repeat(whole_grid(grid).size).index_copy(0, cells, logits))
    seen, tile = tiles.spread(overview)[cells], tiles.numbers(logits.device)[cells]
    members = [(tile == number).nonzero()[:, 0] for number in range(1 + tiles.rows * tiles.columns)]
    scores = [logits[members[0]], *(unit(logits[own]) + unit(seen[own]) for own in members[1:])]
    rates = [1.0, *tile_rates(overview, tiles.rows, tiles.columns)]
    counts = fitting_counts([len(own) for own in members], rates, count)
    chosen = zip(members, scores, counts, strict=True)
    return torch.cat([own[largest(score, number)] for own, score, number in chosen])


class Tiles:
    """An overview and a sharper view, which was encoded in crops of the overview's size."""

    def __init__(self, views: Sequence[tuple[int, int]]):
        self._sizes = [rows * columns for rows, columns in views]
        self._place = min(range(2), key=lambda number: self._sizes[number])  # of the overview
        self._small, self._sharp = views[self._place], views[1 - self._place]
        self.rows, self.columns = (-(-sharp // small) for sharp, small in zip(self._sharp, self._small, strict=True))

    @classmethod
    def of(cls, grid: Grid) -> Tiles | None:
        """Those of an image, if it has two views of the same area."""
        grid = whole_grid(grid)
        return cls(grid.views) if grid.relation == "aligned" and len(grid.views) == 2 else None

    def overview(self, values: Tensor) -> Tensor:
        """The overview's part of the values of all tokens [N] -> [rows, columns]."""
        return values.split(self._sizes)[self._place].unflatten(0, self._small)

    def spread(self, overview: Tensor) -> Tensor:
        """The overview's values at every token [N]: its own, and bilinearly resized to the sharper view."""
        resized = interpolate(overview[None, None], self._sharp, mode="bilinear")
        return self._in_order(overview.flatten(), resized.flatten())

    def numbers(self, device: torch.device) -> Tensor:
        """The tile of each token [N]: 0 is the overview, crops follow row by row, their padding cut at both ends."""
        down, across = (
            (torch.arange(length, device=device) + (crops * side - length) // 2) // side
            for length, crops, side in zip(self._sharp, (self.rows, self.columns), self._small, strict=True)
        )
        crops = 1 + self.columns * down[:, None] + across
        return self._in_order(crops.new_zeros(self._sizes[self._place]), crops.flatten())

    def _in_order(self, overview: Tensor, sharp: Tensor) -> Tensor:
        return torch.cat([sharp, overview] if self._place else [overview, sharp])


def class_logits(signals: ImageSignals) -> Tensor:
    """Head-mean attention logits of the class token in the last encoder layer [N].

    Without a class token: the logarithm of the received attention, relative to its mean over the image.
    """
    if signals.layers:
        return signals.packed(signals.layers[max(signals.layers)].logits().mean(1))
    logits = received_attention(signals).clamp(min=SMALLEST).log()
    return logits - logits.mean()


def tile_rates(overview: Tensor, rows: int, columns: int) -> list[float]:
    """The share that each crop keeps, relative to the overview's, from the overview's logits [height, width]."""
    down, across = (
        (torch.arange(length, device=overview.device) // max(1, length // crops)).clamp(max=crops - 1)
        for length, crops in zip(overview.shape, (rows, columns), strict=True)
    )
    crop = (columns * down[:, None] + across).flatten()
    sums = overview.new_zeros(rows * columns).index_add_(0, crop, overview.flatten())
    return (1 + (sums / TEMPERATURE).softmax(0) - 1 / (rows * columns)).tolist()


def fitting_counts(sizes: Sequence[int], rates: Sequence[float], count: int) -> list[int]:
    """Tokens that each tile keeps at the largest ratio whose published counts do not exceed `count`.

    If several tiles gain a token at the next ratio, the first of them fill the places that are left.
    """

    def published(ratio: float) -> list[int]:
        return [int(size * min(1.0, ratio * rate)) for size, rate in zip(sizes, rates, strict=True)]

    low, high = 0.0, 2 / min(rates)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(published(middle)) <= count else (low, middle)
    counts = published(low)
    for number, more in enumerate(published(high)):
        counts[number] += min(more - counts[number], count - sum(counts))
    return counts


def unit(values: Tensor) -> Tensor:
    return values / values.norm().clamp(min=SMALLEST)
