"""Functions that several methods share: signals in content order, ranking, merging, greedy selection.

If an image is encoded in several tiles, every method here sees all its content tokens as one pool and reaches the
image's budget exactly. Most published code compresses tile by tile instead and drops the newline markers; here the
markers stay in the sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.signals import EncoderLayer, ImageSignals
from covist.formulas import ops
from covist.formulas.ops import unit_rows
from covist.methods.layout import allot
from covist.reduction import Reduction
from covist.state import VisualState

TIE = 1e-6
"""Scores that differ by less than this, relative to the largest, count as equal."""


def received_attention(signals: ImageSignals) -> Tensor:
    """Head-mean class attention of every content token [N]; incoming attention if there is no class token.

    Heads that attend to the class token itself count less here; CoViST gives every head the same weight.
    """
    attention = signals.attention if signals.feeding is None else signals.feeding.class_row()
    return signals.packed(attention.mean(1))


def layer_attention(signals: ImageSignals, layer: EncoderLayer) -> Tensor:
    """Head-mean class attention of another encoder layer, in content order [N]."""
    return signals.packed(layer.class_row().mean(1))


def tile_numbers(signals: ImageSignals) -> Tensor:
    """The tile in which the encoder saw each content token [N]; without a class token, its view."""
    if signals.feeding is None:
        return signals.grid.view_numbers(signals.pack.device)
    return signals.pack // signals.feeding.keys.shape[1]


def tile_shares(signals: ImageSignals, count: int) -> list[tuple[Tensor, int]]:
    """The content tokens of each tile, and how many of `count` the tile gets in proportion to them."""
    return group_shares(tile_numbers(signals), count)


def group_shares(group: Tensor, count: int) -> list[tuple[Tensor, int]]:
    """The tokens of each group, from the group of each token [N], and how many of `count` it gets in proportion."""
    shares = allot(count, group.bincount().tolist())
    return [((group == number).nonzero()[:, 0], share) for number, share in enumerate(shares)]


def cosine(features: Tensor, others: Tensor | None = None) -> Tensor:
    """Cosines in float32: [N, d] with itself or with [M, d] -> [N, N] or [N, M]."""
    unit = unit_rows(features)
    return unit @ (unit if others is None else unit_rows(others)).T


def distances(features: Tensor) -> Tensor:
    """1 - cosine of all pairs of rows [N, d] -> [N, N]; zero if two tokens differ only by rounding."""
    distance = 1 - cosine(features)
    return distance.masked_fill(distance <= TIE, 0)


def largest(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest scores [N], best first; ties go to the lowest index."""
    return scores.argsort(descending=True, stable=True)[:count]


def first_best(scores: Tensor) -> Tensor:
    """The lowest index whose score [N] is the largest up to rounding, so that noise does not break ties."""
    return ops.first_largest(scores, TIE * scores.max().abs())


def turns(order: Tensor, group: Tensor) -> Tensor:
    """Turn of each token in its group [N], from 0, if every group takes its tokens in the `order` [N] of all tokens."""
    by_group = order[group[order].argsort(stable=True)]
    sizes = group.bincount()
    turn = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[group[by_group]]
    return torch.empty_like(turn).scatter_(0, by_group, turn)


def without(indices: Tensor, total: int) -> Tensor:
    """The indices below `total` that are not in `indices`, increasing."""
    remaining = torch.ones(total, dtype=torch.bool, device=indices.device)
    remaining[indices] = False
    return remaining.nonzero()[:, 0]


def stretched(values: Tensor, noise: float = TIE) -> Tensor:
    """Min-max of values [N]; ones if they differ by no more than `noise`, relative to the largest.

    What only rounding tells from the lowest becomes zero too, so that copies of the lowest are not chosen by noise.
    """
    size = values.abs().max()
    above = values - values.min()
    above = above.masked_fill(above <= TIE * size, 0)
    return torch.where(above.max() > noise * size, above / above.max(), 1.0)


def expand(start: Tensor, distance: Tensor, count: int, saliency: Tensor | None = None) -> Tensor:
    """Grow `start` to `count` tokens by saliency [N] times distance [N, N] to the nearest chosen token."""
    nearest = distance[start].amin(0)
    saliency = torch.ones_like(nearest) if saliency is None else saliency
    chosen = list(start)
    free = torch.ones_like(nearest, dtype=torch.bool)
    free[start] = False
    for _ in range(count - len(start)):
        best = first_best((saliency * nearest).masked_fill(~free, -torch.inf))
        chosen.append(best)
        free[best] = False
        nearest = torch.minimum(nearest, distance[best])
    return torch.stack(chosen)


def cluster_means(
    features: Tensor, cluster: Tensor, count: int, members: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean of the features [N, d] of each cluster in float32 -> ([count, d], member counts [count]).

    members: as how many each row counts, [N]; one, if it is not given
    """
    # not bincount, which waits for the device
    ones = torch.ones(cluster.shape, dtype=torch.float32, device=features.device) if members is None else members
    sizes = torch.zeros(count, dtype=torch.float32, device=features.device).index_add_(0, cluster, ones)
    rows = features.float() if members is None else features.float() * members[:, None]
    sums = torch.zeros(count, features.shape[1], dtype=torch.float32, device=features.device).index_add_(
        0, cluster, rows
    )
    return sums / sizes.clamp(min=1)[:, None], sizes


def joined(similarity: Tensor, kept: Tensor) -> Tensor:
    """The kept token [K] that each token joins, by similarity [N, K]; a kept token joins itself -> [N] below K."""
    return similarity.argmax(-1).index_copy_(0, kept, torch.arange(len(kept), device=kept.device))


def rewritten(state: VisualState, places: Tensor, features: Tensor, weights: Tensor | None = None) -> VisualState:
    """The state with other features [P, d] at some places [P], and other weights [P] if there are any."""
    content = state.features.index_copy(0, places, features.to(state.features.dtype))
    if weights is not None:
        state = state.replace(weights=state.weights.index_copy(0, places, weights))
    return state.with_features(content)


def represented(state: VisualState, removed: Tensor, places: Tensor, cluster: Tensor, features: Tensor) -> Reduction:
    """Replace the tokens `removed` [R] by one token for each of their clusters [R], at some of their places [C].

    features: of these tokens [C, d]; each has the weight of its members, and every other token stays as it is.
    """
    sizes = cluster.bincount(minlength=len(places)).to(state.weights)
    kept = torch.cat([without(removed, state.count), places]).sort().values
    assignment = torch.searchsorted(kept, state.indices)
    assignment[removed] = torch.searchsorted(kept, places[cluster])
    return Reduction(rewritten(state, places, features, sizes).restrict(kept), assignment=assignment)


def farthest_points(features: Tensor, start: Tensor, count: int) -> Tensor:
    """Grow `start` [1] to `count` rows of [N, d], each the farthest (Euclidean) from those before, in this order."""
    chosen, nearest = [start], torch.full_like(features[:, 0], torch.inf)
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, (features - features[chosen[-1]]).square().sum(-1))
        nearest[chosen[-1]] = -torch.inf
        chosen.append(first_best(nearest)[None])
    return torch.cat(chosen)


class Coverage:
    """`sum_rows max_{i chosen} rows[:, i]` of [R, N], and what each column would add to it.

    A choice raises the coverage of only a few rows, and gains fall by exactly the part of these rows, so nothing is
    summed twice. floor: coverage of every row before any choice.
    """

    def __init__(self, rows: Tensor, floor: float = 0.0):
        self._rows = rows.double()
        self.covered = torch.full_like(self._rows[:, 0], floor)  # [R]
        self._gains = (self._rows - floor).clamp(min=0).sum(0)

    @property
    def gains(self) -> Tensor:
        """[N]"""
        return self._gains.clamp(min=0)

    def add(self, column: Tensor) -> None:
        added = self._rows[:, column]
        risen = (added > self.covered).nonzero()[:, 0]
        old, new = self.covered[risen, None], added[risen, None]
        self._gains -= (self._rows[risen].clamp(old, new) - old).sum(0)
        self.covered[risen] = new[:, 0]


def greedy_max_coverage(rows: Tensor, count: int, priority: Tensor | None = None) -> Tensor:
    """Greedy maximisation of `sum_rows max_{i chosen} rows[:, i]` -> columns [count] in the order of choice.

    rows: [R, N]; coverage starts at zero. priority: factor on each column's gain [N].
    """
    coverage = Coverage(rows)
    priority = torch.ones_like(coverage.gains) if priority is None else priority.double()
    free = torch.ones_like(priority, dtype=torch.bool)
    chosen = []
    for _ in range(count):
        best = first_best((coverage.gains * priority).masked_fill(~free, -torch.inf))
        free[best] = False
        chosen.append(best)
        coverage.add(best)
    return torch.stack(chosen)
