"""Density peaks (DPC-kNN): centres are dense and far from denser points; every other point joins the nearest centre.

Published code adds noise to the densities, so that it chooses among copies at random. Here, what differs only by
rounding is equal, and the first of equals counts as the denser one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covist.formulas.ops import ranking
from covist.methods.shared import cluster_means, joined


def density_peaks(points: Tensor, clusters: int, neighbours: int, itself: bool = True) -> tuple[Tensor, Tensor]:
    """Cluster points [P, d] -> (centres [clusters] by falling score, cluster of each point [P])."""
    distance = scaled_distances(points)
    centres = ranking(peak_scores(distance, neighbours, itself))[:clusters]
    return centres, joined(-distance[:, centres], centres)


def merge_by_density(points: Tensor, sizes: Tensor, clusters: int, neighbours: int) -> tuple[Tensor, Tensor, Tensor]:
    """Merge points [P, d] that stand for `sizes` [P] tokens into at most `clusters`: (centres, means, their sizes)."""
    if clusters >= len(points):
        return torch.arange(len(points), device=points.device), points, sizes
    if not clusters:
        return torch.arange(0, device=points.device), points[:0], sizes[:0]
    centres, cluster = density_peaks(points, clusters, neighbours)
    means, _ = cluster_means(points, cluster, clusters)
    return centres, means, sizes.new_zeros(clusters).index_add_(0, cluster, sizes)


def scaled_distances(points: Tensor) -> Tensor:
    """Euclidean distances of all pairs of points [P, d], divided by the square root of d -> [P, P]."""
    points = points.float()
    return torch.cdist(points, points).fill_diagonal_(0) / points.shape[1] ** 0.5


def peak_scores(distance: Tensor, neighbours: int, itself: bool = True) -> Tensor:
    """Density times distance to the nearest denser point, from distances [P, P] -> [P].

    The density is exp of the negated mean square distance to the `neighbours` nearest points, of which the point
    `itself` is one or not.
    """
    nearest = distance.topk(min(neighbours + (not itself), len(distance)), largest=False).values
    spread = nearest.square().sum(-1) / max(1, nearest.shape[1] - (not itself))
    order = ranking(1 / spread)  # densities may all be near 1, where rounding is coarse
    turn = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
    apart = distance.masked_fill(turn[:, None] <= turn, torch.inf).amin(-1)
    return torch.exp(-spread) * apart.index_fill(0, order[:1], distance.max())
