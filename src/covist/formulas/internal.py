"""Selection inside the decoder: the scored reduction and the final ordered spatial subsampling."""

import math

import torch
from torch import Tensor

from covist.checks import require_count, require_evidence, require_shape
from covist.config import CovistConfig
from covist.formulas.attention import mean_attention
from covist.formulas.evidence import mix_heads
from covist.formulas.greedy import fill_reserve
from covist.formulas.ops import EPSILON, min_max, round_half_up, share_groups
from covist.formulas.selection import Selection
from covist.state import VisualState

ANCHOR, COORDINATE, SPATIAL, SCORED = range(4)
"""Levels of claim to survive, strongest first."""


def attention_score(
    queries: Tensor, keys: Tensor, log_factor: Tensor, gains: Tensor, scale: float | None = None
) -> Tensor:
    """Visual attention of the last instruction token with unit weights, heads mixed -> [K].

    queries: rotated, [heads, dh]; keys: rotated, [heads or kv heads, K, dh]; log_factor: log(2 - D), [K];
    gains: [heads]; scale: the factor of the model's logits, if not dh^-1/2.
    """
    heads, width = queries.shape
    logits = (share_groups(keys.float(), heads) @ queries.float()[:, :, None])[..., 0]
    logits = logits * (width**-0.5 if scale is None else scale)
    return mix_heads(torch.softmax(logits + gains[:, None] * log_factor, dim=-1))


def value_score(text_values: Tensor, visual_values: Tensor) -> Tensor:
    """Similarity to the instruction in value space: [kv heads, T, dh] and [kv heads, K, dh] -> [K]."""
    return mean_attention(text_values, visual_values)


def internal_score(attention: Tensor, value: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Mean of the two min-max-normalised scores [K], which is both the order of retention and the stage's evidence."""
    return 0.5 * min_max(attention, epsilon) + 0.5 * min_max(value, epsilon)


def internal_selection(
    state: VisualState, score: Tensor, count: int, inverse_frequencies: Tensor, config: CovistConfig
) -> Selection:
    """Keep `count` representatives: anchors, coordinate tokens, stratified tokens, the best-scored, and the reserve."""
    require_shape("internal_selection", "score", score, (state.count,))
    require_count("internal_selection", count, state.count)
    require_evidence("internal_selection", "score", score)
    level = torch.full_like(state.indices, SCORED)
    level[state.anchors] = ANCHOR
    quota = round_half_up(config.coordinate_quota * count)
    cosine, sine = coordinate_signals(state, inverse_frequencies, config)
    for signal, places in ((cosine, quota - quota // 2), (sine, quota // 2)):
        unclaimed = signal.masked_fill(level < SCORED, -torch.inf)
        best = unclaimed.argsort(descending=True, stable=True)[:places]
        level[best] = level[best].clamp(max=COORDINATE)
    level[stratified_tokens(state, score, level < SCORED, round_half_up(config.spatial_quota * count))] = SPATIAL

    scored = count - round_half_up(config.reserve * count)
    order = score.argsort(descending=True, stable=True)
    order = order[level[order].argsort(stable=True)]
    chosen = torch.zeros_like(state.anchors)
    chosen[order[:scored]] = True
    return _finish(state, chosen, count - scored, score)


def coordinate_signals(state: VisualState, inverse_frequencies: Tensor, config: CovistConfig) -> tuple[Tensor, Tensor]:
    """Mean cos(p theta) and mean sin(p theta) of every representative, [K] each.

    With several rotary axes, the mean is over every frequency on every axis, as in IVC-Prune, from which this rule
    comes. Only attention (Eq. 9) assigns each frequency to one axis.
    """
    places = state.positions if config.coordinate_rule == "rope" else state.coordinates
    # Angles in float64 on the CPU (not every device has it), because float32 is too coarse for large indices times high
    # frequencies. Means in float32, so that mirrored places, which have equal means, tie.
    angles = places.reshape(state.count, -1, 1).cpu().double() * inverse_frequencies.cpu().double()  # [K, axes, r]
    cosine, sine = (wave.mean((1, 2)).float().to(places.device) for wave in (angles.cos(), angles.sin()))
    return cosine, sine


def stratified_tokens(state: VisualState, score: Tensor, claimed: Tensor, quota: int) -> Tensor:
    """The best-scored representative of each cell without a claimed one, in a near-square grid of `quota` cells."""
    if quota == 0:
        return state.indices[:0]
    rows = math.isqrt(quota)
    columns = quota // rows
    x, y = state.coordinates[:, :2].unbind(-1)
    cell = (y * rows).long().clamp(max=rows - 1) * columns + (x * columns).long().clamp(max=columns - 1)
    taken = torch.zeros(rows * columns, dtype=torch.bool, device=cell.device)
    taken[cell[claimed]] = True
    order = score.argsort(descending=True, stable=True)
    order = order[cell[order].argsort(stable=True)]  # cell by cell, best score first
    leads = torch.ones_like(claimed)
    leads[1:] = cell[order].diff() > 0
    return order[leads & ~taken[cell[order]]]


def spatial_subsample(state: VisualState, count: int, config: CovistConfig) -> Selection:
    """Keep `count` representatives evenly spaced along the original order, plus the reserve; uniform evidence."""
    require_count("spatial_subsample", count, state.count)
    spaced = count - round_half_up(config.reserve * count)
    places = torch.arange(spaced, device=state.indices.device)
    chosen = torch.zeros_like(state.anchors)
    chosen[(2 * places + 1) * state.count // (2 * spaced)] = True  # floor((i + 1/2) n / k)
    return _finish(state, chosen, count - spaced, torch.full_like(state.weights, 1 / state.count))


def _finish(state: VisualState, chosen: Tensor, reserve: int, evidence: Tensor) -> Selection:
    if reserve > 0:
        chosen = fill_reserve(state.require_affinity("internal selection"), chosen, reserve)
    return Selection(chosen.nonzero()[:, 0], evidence, state.anchors, {"combined": evidence})
