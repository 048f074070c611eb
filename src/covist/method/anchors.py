"""The tokens that coverage starts from: the core of attention peaks and the instruction anchors."""

import math

import torch
from torch import Tensor

from covist.config import CovistConfig

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
    candidate still allowed.
    """
    limit = min(config.anchor_limit, math.floor(config.anchor_fraction * count))
    initial = min(max(2, count // INITIAL_ANCHOR_DIVISOR), limit)
    order = distribution.argsort(descending=True, stable=True)
    allowed = torch.ones_like(order, dtype=torch.bool)  # along the order
    to_initial = torch.zeros_like(distribution)
    anchors: list[Tensor] = []
    novel = torch.zeros_like(order[:1])
    for step in range(limit):
        place = allowed.int().argmax()
        if not bool(allowed[place]) or int(novel) >= NOVEL_ANCHORS:
            break
        anchor = order[place]
        anchors.append(anchor)
        similarity = affinity[anchor]
        if step < initial:
            to_initial = torch.maximum(to_initial, similarity)
        else:
            novel += 1 - to_initial[anchor] > config.anchor_novelty
        allowed &= similarity[order] < config.anchor_redundancy
        allowed[place] = False
    return torch.stack(anchors) if anchors else order[:0]


def protected_tokens(
    attention: Tensor, anchors: Tensor, count: int, concentration: float, config: CovistConfig
) -> Tensor:
    """Core first, then anchors, truncated so that coverage keeps its free places -> distinct indices [any]."""
    core = attention.argsort(descending=True, stable=True)[: core_size(count, concentration, config)]
    extra = anchors[~torch.isin(anchors, core)]
    return torch.cat([core, extra])[: max(0, count - free_places(count))]
