"""Affinity (Eq. 2), coverage weights (Eq. 4) and their balance over regions."""

import torch
from torch import Tensor

from covist.checks import require_shape
from covist.config import CovistConfig
from covist.formulas.ops import EPSILON, first_largest, mass_norm, unit_rows

CONCENTRATION_CLIP = (0.5, 1.5)
KEY_SCALE, EMBEDDING_SCALE, COORDINATE_SCALE = 0.425, 0.425, 0.15
DISTANCE_TIE = 1e-6
"""Squared distances between descriptors of norm about one that are closer than this are equal."""


def affinity(keys: Tensor, embeddings: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Eq. 2: s [N, N] from raw keys [N, k] and projected embeddings [N, d]; rows are normalised here."""
    require_shape("affinity", "embeddings", embeddings, (keys.shape[0], None))
    unit_keys = unit_rows(keys, epsilon)
    return blend_similarities(unit_keys @ unit_keys.T, unit_rows(embeddings, epsilon))


def blend_similarities(key_cosines: Tensor, unit_embeddings: Tensor) -> Tensor:
    """Eq. 2 given the key cosines [N, N], which are overwritten with s: no third N x N matrix is needed."""
    cosines = (unit_embeddings @ unit_embeddings.T).clamp_(0, 1)
    return key_cosines.clamp_(0, 1).add_(cosines).mul_(0.5)


def uniform_coefficient(count: int, concentration: float, reference: float | None, config: CovistConfig) -> float:
    """u of Eq. 4: falls with the count, rises where attention is less concentrated than the running `reference`."""
    coefficient = config.uniform_multiplier * _interpolate(config.uniform_coefficients, count)
    if reference is not None:
        low, high = CONCENTRATION_CLIP
        ratio = 1 + (reference - concentration) / max(reference, config.epsilon)
        coefficient *= min(max(ratio, low), high)
    return min(coefficient, config.uniform_ceiling)


def _interpolate(knots: tuple[tuple[int, float], ...], count: int) -> float:
    """Piecewise linear through the knots, flat outside."""
    for (left, low), (right, high) in zip(knots, knots[1:], strict=False):
        if left <= count <= right:
            return low + (high - low) * (count - left) / (right - left)
    return knots[0][1] if count < knots[0][0] else knots[-1][1]


def coverage_weights(evidence: Tensor, uniform: float, config: CovistConfig) -> Tensor:
    """Eq. 4: w [N], the sharpened evidence mixed with a uniform component."""
    sharpened = mass_norm(evidence.pow(config.evidence_exponent))
    return (1 - uniform) * sharpened + uniform / evidence.shape[0]


def region_weights(
    weights: Tensor, unit_keys: Tensor, unit_embeddings: Tensor, coordinates: Tensor, config: CovistConfig
) -> Tensor:
    """omega [N]: the weights w rebalanced over regions, which keeps a large region from taking the whole budget."""
    region = assign_regions(weights, unit_keys, unit_embeddings, coordinates, config.regions)  # [N]
    mass = weights.new_zeros(config.regions).index_add_(0, region, weights)
    size = weights.new_zeros(config.regions).index_add_(0, region, torch.ones_like(weights))
    target = (1 - config.region_uniform) * mass + config.region_uniform / (size > 0).sum()
    share = torch.where(mass[region] > 0, weights / mass[region], 1 / size[region])
    return mass_norm(target[region] * share)


def assign_regions(
    weights: Tensor, unit_keys: Tensor, unit_embeddings: Tensor, coordinates: Tensor, regions: int
) -> Tensor:
    """Nearest of the farthest-point centres for every token, [N]; the first centre has the largest weight.

    The descriptors are concatenated in the paper; squared distances add up, so they stay apart here.
    """
    parts = ((KEY_SCALE, unit_keys), (EMBEDDING_SCALE, unit_embeddings), (COORDINATE_SCALE, coordinates - 0.5))
    norms = [part.square().sum(-1) for _, part in parts]
    centre = weights.argmax()
    distances = []
    nearest = torch.full_like(weights, torch.inf)
    for _ in range(min(regions, weights.shape[0])):
        distance = torch.zeros_like(weights)
        for (scale, part), norm in zip(parts, norms, strict=True):
            distance += scale * (norm + norm[centre] - 2 * (part @ part[centre])).clamp(min=0)
        distances.append(distance)
        nearest = torch.minimum(nearest, distance)
        centre = first_largest(nearest, DISTANCE_TIE)
    return first_largest(-torch.stack(distances), DISTANCE_TIE)
