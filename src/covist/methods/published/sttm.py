"""STTM: uniform areas of a frame become one token, and so do areas that stay the same from frame to frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covist.contract.views import DecoderView
from covist.formulas.ops import unit_rows
from covist.grid import Grid
from covist.methods.inside import CutInside
from covist.methods.layout import cells_of, whole_grid
from covist.methods.published import register_published
from covist.methods.published._quadtree import Quadtree
from covist.methods.shared import largest, rewritten, without
from covist.state import VisualState

LOOSER_IN_TIME = 0.2  # how far the bound between frames is below that within one
STEPS = 24  # of the search for the bound
LOOSEST, STRICTEST = -1.0, 1.25  # bounds by which everything merges, and nothing


@register_published
class STTM(CutInside):
    name = "sttm"
    cuts = (2,)
    writes_content = True

    def reduced(self, state: VisualState, view: DecoderView, count: int) -> VisualState:
        features = view.observed[view.visual].float()
        groups = fitting(quadtrees(state.grid, features), cells_of(state.grid, features.device), count)
        kept, alone = chosen(groups, features, count)
        merging = state.weights.index_fill(0, alone, 0)
        weights = merging.new_zeros(len(groups.content)).index_add_(0, groups.of_token, merging)
        own = groups.of_token[kept]
        merged = rewritten(state, kept, groups.content[own], weights[own])
        return merged.restrict(torch.cat([kept, alone]).sort().values)


@dataclass(frozen=True)
class Groups:
    """Tokens that became one."""

    of_token: Tensor  # [N] below G
    content: Tensor  # [G, d]


def quadtrees(grid: Grid, features: Tensor) -> list[Quadtree]:
    """The quadtree of a video, or one for each view of an image; masked tokens hold the mean of the others."""
    whole, cells = whole_grid(grid), cells_of(grid, features.device)
    filled = features.mean(0).repeat(whole.size, 1).index_copy(0, cells, features)
    views = whole.split(filled)
    return [Quadtree(torch.stack(views))] if whole.relation == "frames" else [Quadtree(view[None]) for view in views]


def fitting(trees: Sequence[Quadtree], cells: Tensor, count: int) -> Groups:
    """At most `count` groups of the tokens at some cells [N], as many as the strictest bound allows.

    The largest areas are the published ones, or larger if even the loosest bound leaves more. Several views have at
    least a group each.
    """
    larger = 0
    best = grouped(trees, cells, larger, LOOSEST)
    while len(best.content) > count and larger < max(tree.root for tree in trees):
        larger += 1
        best = grouped(trees, cells, larger, LOOSEST)
    low, high = LOOSEST, STRICTEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        tried = grouped(trees, cells, larger, middle)
        if len(tried.content) <= count:
            low, best = middle, tried
        else:
            high = middle
    return best


def grouped(trees: Sequence[Quadtree], cells: Tensor, larger: int, bound: float) -> Groups:
    """The groups of all trees, whose largest areas are some levels larger than published."""
    numbers: list[Tensor] = []
    contents: list[Tensor] = []
    for tree in trees:
        group, content = tree.merged(max(0, tree.root - larger), bound, bound - LOOSER_IN_TIME)
        numbers.append(group + sum(map(len, contents)))
        contents.append(content)
    left, group = torch.cat(numbers)[cells].unique(return_inverse=True)
    return Groups(group, torch.cat(contents)[left])


def chosen(groups: Groups, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first token of each group that stays, and tokens [N, d] that stay alone to fill the remaining places.

    These resemble their groups least. If there are too many groups, the largest ones stay.
    """
    tokens = torch.arange(len(features), device=features.device)
    first = torch.full_like(groups.content[:, 0], len(tokens), dtype=torch.long)
    first = first.scatter_reduce(0, groups.of_token, tokens, "amin")
    kept = first[largest(groups.of_token.bincount(), count)]
    others = without(kept, len(tokens))
    likeness = (unit_rows(features[others]) * unit_rows(groups.content)[groups.of_token[others]]).sum(-1)
    return kept, others[largest(-likeness, count - len(kept))]
