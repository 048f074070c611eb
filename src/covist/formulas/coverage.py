"""Affinity (Eq. 2), coverage weights (Eq. 4) and their balance over regions."""

import torch
from torch import Tensor

from covist.checks import require_affordable, require_shape
from covist.config import CovistConfig
from covist.formulas.ops import EPSILON, first_largest, first_smallest, gram, mass_norm, unit_rows

CONCENTRATION_CLIP = (0.5, 1.5)
KEY_SCALE, EMBEDDING_SCALE, COORDINATE_SCALE, TIME_SCALE = 0.425, 0.425, 0.15, 0.05
"""Shares of keys, embeddings and coordinates in a descriptor. In a video, time takes its share from the coordinates."""
DISTANCE_TIE = 1e-6
"""Squared distances between descriptors (of norm about one) that differ by less than this count as equal."""
VANISHING = torch.finfo(torch.float32).tiny


def affinity(keys: Tensor, embeddings: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Eq. 2: s [N, N] from raw keys [N, k] and projected embeddings [N, d]; rows are normalised here."""
    require_affordable("affinity", keys.shape[0])
    require_shape("affinity", "embeddings", embeddings, (keys.shape[0], None))
    return blend_similarities(gram(unit_rows(keys, epsilon)), gram(unit_rows(embeddings, epsilon)))


def blend_similarities(key_cosines: Tensor, embedding_cosines: Tensor) -> Tensor:
    """Eq. 2 given the cosines, both [N, N]; both are overwritten, the first with s, to avoid a third matrix."""
    return key_cosines.clamp_(0, 1).add_(embedding_cosines.clamp_(0, 1)).mul_(0.5)


def uniform_coefficient(count: int, concentration: float, reference: float | None, config: CovistConfig) -> float:
    """u of Eq. 4: it falls with the count, and rises if attention is less concentrated than the running `reference`."""
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


def balance_regions(weights: Tensor, region: Tensor, config: CovistConfig) -> Tensor:
    """omega [N]: the weights w, rebalanced over regions [N] so that a large one does not take the whole budget."""
    weights = weights + VANISHING  # a region without weight spreads its target evenly
    member = (region == torch.arange(config.regions, device=region.device)[:, None]).float()  # [regions, N]
    mass = member @ weights
    target = torch.add(config.region_uniform / (mass > 0).sum(), mass, alpha=1 - config.region_uniform)
    return mass_norm(weights * (target / mass)[region])


def descriptor_distances(key_cosines: Tensor, embedding_cosines: Tensor, coordinates: Tensor) -> Tensor:
    """Squared distances between the descriptors of all tokens [N, N].

    The paper concatenates the descriptors. Their squared distance is `n_i + n_j - 2 <i, j>`; cosines give the inner
    products of keys and embeddings, and one small matrix product adds the norms n and the coordinates.
    """
    places = coordinates - 0.5  # [N, 2], in a video [N, 3]
    in_time = places.shape[1] == 3
    scales = [COORDINATE_SCALE - TIME_SCALE] * 2 + [TIME_SCALE] if in_time else [COORDINATE_SCALE] * 2
    scaled = places * places.new_tensor(scales)
    inner = torch.add(key_cosines, embedding_cosines, alpha=EMBEDDING_SCALE / KEY_SCALE)  # [N, N], over KEY_SCALE
    norms = torch.add((scaled * places).sum(-1), inner.diagonal(), alpha=KEY_SCALE)[:, None]
    one = torch.ones_like(norms)
    left = torch.cat([-2 * scaled, norms, one], dim=1)  # [N, 4 or 5]
    right = torch.cat([places, one, norms], dim=1)
    return inner.addmm_(left, right.T, beta=-2 * KEY_SCALE)


def assign_regions(weights: Tensor, distances: Tensor, regions: int) -> Tensor:
    """The nearest farthest-point centre of every token, [N]; the first centre is the token with the largest weight."""
    rows = [distances.index_select(0, weights.argmax())]  # [1, N] each
    nearest = rows[0]
    for _ in range(1, min(regions, weights.shape[0])):
        nearest = torch.minimum(nearest, rows[-1]) if len(rows) > 1 else nearest
        rows.append(distances.index_select(0, first_largest(nearest, DISTANCE_TIE, dim=1)))
    return first_smallest(torch.cat(rows), DISTANCE_TIE)


def covered_by(affinity: Tensor, kept: Tensor) -> Tensor:
    """How well the tokens `kept` [K] cover each token: its largest kernel value, the maximum in Eq. 5 -> [N]."""
    return affinity.index_select(1, kept).amax(1).square()


def coverage_share(affinity: Tensor, omega: Tensor, covered: Tensor) -> Tensor:
    """F of Eq. 5 for tokens that are `covered` [N] so well, divided by F of all tokens -> [], in [0, 1].

    A token covers itself best, so F of all tokens follows from the diagonal. If that is zero, as for an image without
    features, the share is 1.
    """
    reached, whole = torch.dot(omega, covered), torch.dot(omega, affinity.diagonal().square())
    return torch.where(whole > 0, reached / whole, 1.0).clamp(max=1)
