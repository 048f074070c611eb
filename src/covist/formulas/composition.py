"""Coupled state composition: Eqs. 6-8 with the confidence of Eqs. 17 and 18."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from covist.checks import require, require_shape, require_sound
from covist.config import CovistConfig
from covist.formulas.ops import EPSILON, departure_from_uniform, min_max, partition, unit_rows
from covist.formulas.positions import contiguous_positions
from covist.reduction import Reduction
from covist.state import VisualState

SPATIAL_WEIGHT, SPATIAL_WIDTH = 0.45, 0.2
CONFIDENCE_CENTRE, CONFIDENCE_WIDTH = 0.4, 0.1
CANDIDATE_DIVISOR, CANDIDATE_TEMPERATURE = 10, 0.07
EVIDENCE_FLOOR = 1e-6
TRANSFER_THRESHOLD = 1e-8
EXACT_DISTANCES = "donot_use_mm_for_euclid_dist"


def correspondence(similarity: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 6: for each token the most similar representative, [..., D, K] -> [..., D], and how similar it is."""
    best, assigned = similarity.max(-1)
    return assigned, best


def contributions(
    similarity: Tensor,
    assigned: Tensor,
    kept_weights: Tensor,
    removed_weights: Tensor,
    kept_evidence: Tensor,
    removed_evidence: Tensor,
    config: CovistConfig,
) -> tuple[Tensor, Tensor]:
    """Eq. 7: new weights [K], and the contribution withheld by the limit (right side of Eq. 15).

    similarity: s between each removed token and the representative it was assigned to, [D].
    """
    transfer = removed_weights * similarity.pow(config.transfer_exponent)
    received = torch.zeros_like(kept_weights).index_add_(0, assigned, transfer)  # b_i
    conserved, placed = removed_weights @ removed_evidence, kept_evidence @ received
    scale = (conserved / placed).masked_fill(placed <= TRANSFER_THRESHOLD, 0)
    proposed = torch.addcmul(kept_weights, scale, received)
    withheld = kept_evidence @ (proposed - config.weight_limit).clamp(min=0)
    return proposed.clamp(1, config.weight_limit), withheld


def confidence(similarity: Tensor, kept_places: Tensor, removed_places: Tensor) -> Tensor:
    """Eqs. 17, 18: q [D] from s [D, K] and the places in the image [K, 2], [D, 2], or in a video [K, 3], [D, 3]."""
    squared = torch.cdist(removed_places, kept_places, compute_mode=EXACT_DISTANCES).square_()
    spatial = squared.mul_(-1 / (2 * SPATIAL_WIDTH**2)).exp_()
    nearness = torch.add(similarity, spatial, alpha=SPATIAL_WEIGHT)  # t, [D, K]
    count = similarity.shape[1]
    candidates = min(count, max(2, math.ceil(count / CANDIDATE_DIVISOR)))
    best = nearness.topk(candidates, dim=-1).values
    close = torch.sigmoid((best[:, 0] - CONFIDENCE_CENTRE) / CONFIDENCE_WIDTH)
    if candidates == 1:
        return close
    concentrated = departure_from_uniform(torch.softmax(best / CANDIDATE_TEMPERATURE, dim=-1))
    return torch.addcmul(close, close, concentrated) / 2


def content(features: Tensor, centroids: Tensor, config: CovistConfig) -> Tensor:
    """Eq. 8, right: rotate features [K, d] towards centroids [K, d] (zero = none), keeping every norm."""
    moved = torch.add(features, centroids, alpha=config.content_step)
    norm = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    moved_norm = torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
    return torch.where(moved_norm > 0, moved * (norm / moved_norm), features)


def centroids(features: Tensor, assigned: Tensor, importance: Tensor, count: int) -> Tensor:
    """Eq. 8, left: mean of the removed features [D, d] per representative, weighted by importance [D] -> [K, d]."""
    total = importance.new_zeros(count).index_add_(0, assigned, importance)
    share = importance / total[assigned]
    return features.new_zeros(count, features.shape[1]).index_add_(0, assigned, features * share[:, None])


def compose(state: VisualState, kept: Tensor, evidence: Tensor, config: CovistConfig) -> Reduction:
    """Reduce `state` to the tokens `kept` [K] under `evidence` [K_old]; reads nothing else (closure)."""
    _check(state, kept, evidence)
    evidence, places = evidence.float(), torch.arange(kept.shape[0], device=kept.device)
    is_kept = torch.zeros(state.count, dtype=torch.bool, device=kept.device).index_fill_(0, kept, True)
    removed, _ = partition(is_kept, kept.shape[0])
    assignment = torch.empty_like(state.indices).index_copy_(0, kept, places)
    reduced = state.restrict(kept)
    withheld = evidence.new_zeros(())
    if removed.shape[0] == 0:
        return Reduction(reduced, assignment, withheld)

    similarity = state.require_affinity("compose").index_select(1, kept).index_select(0, removed)  # [D, K]
    assigned, closeness = correspondence(similarity)
    assignment.index_copy_(0, removed, assigned)
    if config.contributions:
        weights, withheld = contributions(
            closeness,
            assigned,
            reduced.weights,
            state.weights.index_select(0, removed),
            evidence.index_select(0, kept),
            evidence.index_select(0, removed),
            config,
        )
        reduced = reduced.replace(weights=weights)
    if config.content:
        giving, importance = _givers(state, kept, removed, similarity, evidence, config)
        receiving = assigned[giving]

        def moved(features: Tensor) -> Tensor:
            """Eq. 8 for features [K_old, d] of any kind: the shares are the same for all."""
            centre = centroids(features[removed[giving]].float(), receiving, importance, kept.shape[0])
            return content(features.index_select(0, kept).float(), centre, config).to(features.dtype)

        reduced = reduced.replace(
            features=moved(state.features),
            companions={layer: moved(own) for layer, own in state.companions.items()},
        )
    return Reduction(reduced, assignment, withheld)


def _givers(
    state: VisualState, kept: Tensor, removed: Tensor, similarity: Tensor, evidence: Tensor, config: CovistConfig
) -> tuple[Tensor, Tensor]:
    """The removed tokens that give content, as places in `removed` [G], and the importance of each [G]."""
    places = state.places
    trust = confidence(similarity, places.index_select(0, kept), places.index_select(0, removed))  # q, [D]
    giving = (trust >= config.content_confidence).nonzero()[:, 0]
    return giving, (min_max(evidence, config.epsilon)[removed[giving]] + EVIDENCE_FLOOR) * trust[giving]


def forget_history(state: VisualState, epsilon: float = EPSILON) -> VisualState:
    """The state as ordinary tokens, for reductions without inheritance: unit weights, no anchors, fresh affinities."""
    unit = unit_rows(state.features, epsilon)
    return state.replace(
        weights=torch.ones_like(state.weights),
        affinity=(unit @ unit.T).clamp_(0, 1),
        anchors=torch.zeros_like(state.anchors),
    )


def drop(state: VisualState, kept: Tensor) -> Reduction:
    """The reduction without inheritance: keep `kept`, compose nothing, renumber the positions contiguously."""
    reduced = state.restrict(kept)
    reduced = reduced.replace(positions=contiguous_positions(reduced.positions))
    similarity = state.require_affinity("drop").index_select(1, kept)
    assignment, _ = correspondence(similarity)
    assignment[kept] = torch.arange(kept.shape[0], device=kept.device)
    return Reduction(reduced, assignment, similarity.new_zeros(()))


def _check(state: VisualState, kept: Tensor, evidence: Tensor) -> None:
    where, count = "compose", state.count
    require_shape(where, "evidence", evidence, (count,))
    require_shape(where, "kept", kept, (None,))
    require(1 <= kept.shape[0] <= count, where, f"kept must hold 1 to {count} tokens, got {kept.shape[0]}")
    ordered = (pad(kept, (0, 1), value=count) > pad(kept, (1, 0), value=-1)).all()
    complaint = f"kept must be increasing indices below {count}"
    require_sound(where, {"evidence": evidence}, {complaint: ordered}, features=state.features)
