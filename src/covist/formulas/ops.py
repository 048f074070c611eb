"""The small operators that the formulas share: MassNorm, MinMax, row normalisation, entropy, rounding."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

EPSILON = 1e-8
RESOLUTION = 1e-6


def mass_norm(values: Tensor, dim: int = -1) -> Tensor:
    """MassNorm: divide non-negative `values` by their sum along `dim`; uniform where that sum is zero.

    NaN stays NaN, here and in MinMax, so that later checks detect it.
    """
    total = values.sum(dim, keepdim=True)
    return (values / total).masked_fill(total == 0, 1.0 / values.shape[dim])


def min_max(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """MinMax over the last dimension: `(v - min) / (max - min + epsilon)`; a constant vector becomes zero.

    A range within float32 rounding of the values counts as zero. Otherwise the noise of a constant vector, which is
    larger than epsilon, would be stretched into a pattern.
    """
    # Not aminmax: torch 2.7 has no derivative for it, and gradients pass through here.
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    span, noise = high - low, RESOLUTION * torch.linalg.vector_norm(values, torch.inf, dim=-1, keepdim=True)
    return ((values - low) / (span + epsilon)).masked_fill(span <= noise, 0)


def unit_rows(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Rows divided by their Euclidean norm plus `epsilon`, in float32; a zero row stays zero."""
    values = values.float()
    return values / (torch.linalg.vector_norm(values, dim=-1, keepdim=True) + epsilon)


def gram(rows: Tensor) -> Tensor:
    """Inner products of all pairs of rows [..., N, d] -> [..., N, N]; for unit rows, their cosines."""
    return rows @ rows.mT


def entropy(probabilities: Tensor, dim: int = -1) -> Tensor:
    """Shannon entropy in nats along `dim`, with 0 log 0 = 0."""
    return torch.special.entr(probabilities).sum(dim)


def departure_from_uniform(probabilities: Tensor) -> Tensor:
    """`1 - H / log n` over the last dimension, in [0, 1]; zero for a single entry, which is always uniform."""
    size = probabilities.shape[-1]
    if size == 1:
        return probabilities.new_zeros(probabilities.shape[:-1])
    return torch.rsub(entropy(probabilities), 1, alpha=1 / math.log(size)).clamp(0, 1)


def first_largest(values: Tensor, tolerance: float | Tensor = 0.0, dim: int = 0) -> Tensor:
    """Lowest index along `dim` whose value is within `tolerance` of the largest, so that rounding breaks no ties."""
    return values.clamp(max=values.amax(dim, keepdim=True) - tolerance).argmax(dim)


def first_smallest(values: Tensor, tolerance: float, dim: int = 0) -> Tensor:
    """Lowest index along `dim` whose value is within `tolerance` of the smallest, like `first_largest`."""
    return values.clamp(min=values.amin(dim, keepdim=True) + tolerance).argmin(dim)


def ranking(values: Tensor) -> Tensor:
    """Indices of non-negative `values` [N] from the largest to the smallest; ties in index order.

    Neighbours in this order that differ by no more than float32 rounding are ties as well: sums that are mathematically
    equal must not be ordered by rounding noise.
    """
    ordered, order = values.sort(descending=True)
    falls = ordered[1:] < (1 - RESOLUTION) * ordered[:-1]
    tiers = pad(falls.cumsum(0), (1, 0))  # along the order, equal for ties
    return torch.empty_like(tiers).index_copy_(0, order, tiers).argsort(stable=True)


def partition(mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices outside and inside `mask` [N] bool, each increasing; the caller knows that `count` are inside.

    Unlike `nonzero`, this does not wait for the device.
    """
    outside, inside = mask.byte().argsort(stable=True).split([mask.shape[0] - count, count])
    return outside, inside


def round_half_up(value: float) -> int:
    """The nearest integer; halves are rounded up, as in all counts of the paper."""
    return math.floor(value + 0.5)


def share_groups(grouped: Tensor, heads: int) -> Tensor:
    """Repeat key/value heads [kv heads, ...] for the query heads of their group: [heads, ...]."""
    return grouped if grouped.shape[0] == heads else grouped.repeat_interleave(heads // grouped.shape[0], dim=0)
