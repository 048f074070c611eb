"""The quadtrees of STTM: areas of the frames of a video that are uniform, and that stay the same over time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from covist.methods.shared import cluster_means

ROOT_LEVEL = 1  # levels below the coarsest published one, which has a side of two cells


@dataclass(frozen=True)
class Level:
    """The areas of one size, h x w in every frame of H x W tokens."""

    content: Tensor  # [F, h, w, d]
    row: Tensor  # [H] which of its rows the rows of tokens belong to
    column: Tensor  # [W]
    uniform: Tensor  # [F, h, w] smallest cosine of an area to its parts; inf for single tokens

    @property
    def shape(self) -> tuple[int, int]:
        return self.content.shape[1], self.content.shape[2]

    def coarser(self) -> Level:
        """The level of areas twice as large."""
        down, across = (_halves(length, self.row.device) for length in self.shape)
        content = _means(_means(self.content, down, 1), across, 2)
        return Level(content, down[self.row], across[self.column], _uniform(content, self.content, down, across))

    def at_tokens(self, values: Tensor) -> Tensor:
        """Values of its areas [F, h, w, ...] at every token [F, H, W, ...]."""
        return values[:, self.row][:, :, self.column]

    @property
    def corners(self) -> Tensor:
        """The number of the first token of each token's area in a frame [H, W]."""
        top, left = (torch.searchsorted(own, own) for own in (self.row, self.column))
        return top[:, None] * len(self.column) + left


class Quadtree:
    """Areas of some frames of tokens [F, H, W, d], which are split where they are not uniform."""

    def __init__(self, tokens: Tensor):
        frames, height, width, _ = tokens.shape
        row, column = (torch.arange(length, device=tokens.device) for length in (height, width))
        levels = [Level(tokens, row, column, tokens.new_full((frames, height, width), torch.inf))]
        while max(levels[-1].shape) > 1:
            levels.append(levels[-1].coarser())
        published = next((number for number, level in enumerate(levels) if 2 in level.shape), len(levels) - 1)
        self.root = min(len(levels) - 1 - published + ROOT_LEVEL, len(levels) - 1)
        self._levels = levels[::-1]  # coarsest first
        self._uniform = torch.stack([level.at_tokens(level.uniform) for level in self._levels])
        self._corners = torch.stack([level.corners for level in self._levels])  # [levels, H, W]

    def areas(self, root: int, bound: float) -> tuple[Tensor, Tensor]:
        """The first token of every token's area, and the level of that area [F * H * W] each.

        root: the level of the largest areas; an area stays whole if its cosine to all its parts is at least `bound`
        """
        level = root + (self._uniform[root:] >= bound).int().argmax(0)  # [F, H, W] the first level that is uniform
        tokens = self._corners[0].numel()
        frame = torch.arange(len(level), device=level.device)[:, None, None]
        corner = self._corners.unsqueeze(1).expand(-1, len(level), -1, -1).gather(0, level[None])[0]
        return (frame * tokens + corner).flatten(), level.flatten()

    def merged(self, root: int, spatial: float, temporal: float | None) -> tuple[Tensor, Tensor]:
        """The group of each token [F * H * W], in the order of their first tokens, and their content [G, d].

        temporal: areas of successive frames, one within the other, are in one group from this cosine on; None: never
        """
        first, level = self.areas(root, spatial)
        areas, area = first.unique(return_inverse=True)
        content = self._content(areas, level[areas])
        if temporal is None:
            return area, content
        shown = area.view(self._uniform.shape[1], -1)  # frame by frame; of two areas with a common cell, one is within
        pairs = (shown[:-1] * len(areas) + shown[1:]).unique()
        earlier, later = pairs // len(areas), pairs % len(areas)
        unit = normalize(content, dim=-1)
        same = (unit[earlier] * unit[later]).sum(-1) >= temporal
        groups, group = representatives(earlier[same], later[same], len(areas)).unique(return_inverse=True)
        return group[area], cluster_means(content, group, len(groups))[0]

    def _content(self, areas: Tensor, level: Tensor) -> Tensor:
        """The content [A, d] of areas with these first tokens [A], on these levels [A]."""
        _, height, width = self._corners.shape
        frame, row, column = areas // (height * width), areas // width % height, areas % width
        finest = self._levels[-1].content
        content = finest.new_empty(len(areas), finest.shape[-1])
        for number, own in enumerate(self._levels):
            here = level == number
            content[here] = own.content[frame[here], own.row[row[here]], own.column[column[here]]]
        return content


def representatives(earlier: Tensor, later: Tensor, count: int) -> Tensor:
    """The area that stands for each of `count` areas [count], given pairs [P] of areas that are the same.

    As published: two earlier areas that share a later one are joined only if another round happens to run.
    """
    found = torch.arange(count, device=earlier.device)
    while True:
        lowest = torch.minimum(found[earlier], found[later])
        found = found.scatter_reduce(0, earlier, lowest, "amin").scatter_reduce(0, later, lowest, "amin")
        found = found[found]
        if torch.equal(found, found[found]):
            return found


def _halves(length: int, device: torch.device) -> Tensor:
    """The half to which each of `length` cells belongs: pairs, but of an odd number the first is alone."""
    return (torch.arange(length, device=device) + length % 2) // 2


def _means(values: Tensor, group: Tensor, dim: int) -> Tensor:
    """Means of groups along a dimension."""
    sizes = group.bincount()
    shape = list(values.shape)
    shape[dim] = len(sizes)
    sums = values.new_zeros(shape).index_add_(dim, group, values)
    return sums / sizes.view([-1 if place == dim else 1 for place in range(values.dim())])


def _uniform(areas: Tensor, parts: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """The smallest cosine of each area [F, h, w, d] to its parts.

    As published, an area with fewer than four parts is compared with the first part of the frame, too.
    """
    frames, height, width, _ = areas.shape
    area, part = normalize(areas, dim=-1), normalize(parts, dim=-1)
    owner = (down[:, None] * width + across).flatten()
    cosines = (area[:, down][:, :, across] * part).sum(-1).flatten(1)
    least = cosines.new_full((frames, height * width), torch.inf)
    least = least.scatter_reduce(1, owner.expand(frames, -1), cosines, "amin").unflatten(1, (height, width))
    is_border = (owner.bincount() < 4).unflatten(0, (height, width))
    to_first = (area * part[:, :1, :1]).sum(-1)
    return torch.where(is_border, torch.minimum(least, to_first), least)
