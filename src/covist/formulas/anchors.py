"""The tokens that coverage starts from: the core of attention peaks and the instruction anchors."""

import math

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.formulas.ops import ranking

INITIAL_ANCHOR_DIVISOR = 12
NOVEL_ANCHORS = 3
FREE_PLACE_DIVISOR = 8
CANDIDATES = 4
"""Candidates read at once, per anchor that may be kept."""


def core_size(count: int, concentration: float, config: CovistConfig) -> int:
    """Attention peaks to protect among `count` tokens: the more concentrated the attention, the more of them."""
    return math.floor((config.core_base + config.core_slope * math.sqrt(concentration)) * count)


def free_places(count: int) -> int:
    """Places that the protected tokens must leave for greedy coverage and the reserve."""
    return max(2, count // FREE_PLACE_DIVISOR)


def anchor_places(count: int, config: CovistConfig) -> int:
    """How many anchors a selection of `count` tokens may have."""
    return min(config.anchor_limit, math.floor(config.anchor_fraction * count))


def instruction_anchors(distribution: Tensor, affinity: Tensor, count: int, config: CovistConfig) -> Tensor:
    """Non-redundant tokens in the order of pi [N], most relevant first -> anchors in that order, [any].

    The few numbers that decide are read once, and the host walks along the candidates. It reads more only if nearly all
    of them are copies of each other.
    """
    limit = anchor_places(count, config)
    initial = min(max(2, count // INITIAL_ANCHOR_DIVISOR), limit)
    order = distribution.argsort(descending=True, stable=True)
    kept: list[int] = []  # places along the order
    novel = 0
    for start in range(0, order.shape[0], CANDIDATES * limit) if limit else ():
        block = order[start : start + CANDIDATES * limit]
        places = [*kept, *range(start, start + block.shape[0])]
        similarity = affinity.index_select(0, block).index_select(1, order[places])
        copies = similarity >= config.anchor_redundancy
        unlike = 1 - similarity > config.anchor_novelty
        for place, row in enumerate(torch.stack([copies, unlike], -1).tolist(), start):
            if len(kept) == limit or novel == NOVEL_ANCHORS:
                return order[kept]
            to = dict(zip(places, row, strict=True))
            if not any(to[anchor][0] for anchor in kept):
                novel += len(kept) >= initial and all(to[anchor][1] for anchor in kept[:initial])
                kept.append(place)
    return order[kept]


def protected_tokens(
    attention: Tensor, anchors: Tensor, count: int, concentration: float, config: CovistConfig
) -> Tensor:
    """Core first, then anchors, truncated so that coverage keeps its free places -> distinct indices [any]."""
    protected = ranking(attention)[: core_size(count, concentration, config)]
    if anchors.shape[0]:
        outside = torch.ones_like(attention, dtype=torch.bool).index_fill_(0, protected, False)
        protected = torch.cat([protected, anchors[outside[anchors]]])
    return protected[: max(0, count - free_places(count))]
