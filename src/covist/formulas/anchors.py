"""The tokens that coverage starts from: the core of attention peaks and the instruction anchors."""

import math

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.formulas.ops import first_largest

INITIAL_ANCHOR_DIVISOR = 12
NOVEL_ANCHORS = 3
FREE_PLACE_DIVISOR = 8


def core_size(count: int, concentration: float, config: CovistConfig) -> int:
    """Attention peaks to protect among `count` tokens: more of them where attention is concentrated."""
    return math.floor((config.core_base + config.core_slope * math.sqrt(concentration)) * count)


def free_places(count: int) -> int:
    """Places that the protected tokens must leave to the greedy coverage and the reserve."""
    return max(2, count // FREE_PLACE_DIVISOR)


def instruction_anchors(distribution: Tensor, affinity: Tensor, count: int, config: CovistConfig) -> Tensor:
    """Non-redundant tokens in the order of pi [N], most relevant first -> anchors in that order, [any].

    A candidate that is too similar to a kept anchor is skipped for good, so the next anchor is always the first
    candidate still allowed. The search runs to its limit without asking the device whether it is over already.
    """
    limit = min(config.anchor_limit, math.floor(config.anchor_fraction * count))
    initial = min(max(2, count // INITIAL_ANCHOR_DIVISOR), limit)
    order = distribution.argsort(descending=True, stable=True)
    allowed = torch.ones_like(order, dtype=torch.bool)  # along the order
    to_initial = torch.zeros_like(distribution)
    novel = torch.zeros_like(order[:1])
    anchors, accepted = [order[:0]], [allowed[:0]]
    for step in range(limit):
        place = first_largest(allowed.int())[None]
        anchor = order[place]
        anchors.append(anchor)
        accepted.append(allowed[place] & (novel < NOVEL_ANCHORS))
        similarity = affinity.index_select(0, anchor)[0]
        if step < initial:
            to_initial = torch.maximum(to_initial, similarity)
        else:
            novel += 1 - to_initial[anchor] > config.anchor_novelty
        allowed &= similarity[order] < config.anchor_redundancy
        allowed.index_fill_(0, place, False)
    return torch.cat(anchors)[torch.cat(accepted)]


def protected_tokens(
    attention: Tensor, anchors: Tensor, count: int, concentration: float, config: CovistConfig
) -> Tensor:
    """Core first, then anchors, truncated so that coverage keeps its free places -> distinct indices [any]."""
    core = attention.argsort(descending=True, stable=True)[: core_size(count, concentration, config)]
    extra = anchors[~torch.isin(anchors, core)]
    return torch.cat([core, extra])[: max(0, count - free_places(count))]
