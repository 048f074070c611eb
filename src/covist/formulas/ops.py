"""The small operators that the formulas share: MassNorm, MinMax, row normalisation, entropy, rounding."""

import math

import torch
from torch import Tensor

EPSILON = 1e-8
RESOLUTION = 1e-6


def mass_norm(values: Tensor, dim: int = -1) -> Tensor:
    """MassNorm: divide non-negative `values` by their sum along `dim`; uniform where that sum is zero.

    NaN stays NaN, here and in MinMax, so that the checks behind them see it.
    """
    total = values.sum(dim, keepdim=True)
    uniform = torch.full_like(values, 1.0 / values.shape[dim])
    return torch.where(total == 0, uniform, values / total)


def min_max(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """MinMax over the last dimension: `(v - min) / (max - min + epsilon)`; a constant vector becomes zero.

    A range within float32 rounding of the values is no range: without that, the noise of a constant vector, which is
    larger than epsilon, would be stretched into a pattern.
    """
    low, high = torch.aminmax(values, dim=-1, keepdim=True)
    noise = RESOLUTION * torch.maximum(low.abs(), high.abs())
    return torch.where(high - low <= noise, torch.zeros_like(values), (values - low) / (high - low + epsilon))


def unit_rows(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Rows divided by their Euclidean norm plus `epsilon`, in float32; a zero row stays zero."""
    values = values.float()
    return values / (torch.linalg.vector_norm(values, dim=-1, keepdim=True) + epsilon)


def entropy(probabilities: Tensor, dim: int = -1) -> Tensor:
    """Shannon entropy in nats along `dim`, with 0 log 0 = 0."""
    return torch.special.entr(probabilities).sum(dim)


def departure_from_uniform(probabilities: Tensor) -> Tensor:
    """`1 - H / log n` over the last dimension, in [0, 1]; zero for a single entry, which is always uniform."""
    size = probabilities.shape[-1]
    if size == 1:
        return probabilities.new_zeros(probabilities.shape[:-1])
    return (1 - entropy(probabilities) / math.log(size)).clamp(0, 1)


def first_largest(values: Tensor, tolerance: float = 0.0, dim: int = 0) -> Tensor:
    """Lowest index along `dim` whose value is within `tolerance` of the largest: ties that rounding hides stay ties."""
    return (values >= values.amax(dim, keepdim=True) - tolerance).view(torch.uint8).argmax(dim)


def round_half_up(value: float) -> int:
    """The nearest integer; halves go up, as everywhere in the paper's counts."""
    return math.floor(value + 0.5)


def share_groups(grouped: Tensor, heads: int) -> Tensor:
    """Repeat key/value heads [kv heads, ...] for the query heads of their group: [heads, ...]."""
    return grouped if grouped.shape[0] == heads else grouped.repeat_interleave(heads // grouped.shape[0], dim=0)
