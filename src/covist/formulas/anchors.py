"""The tokens that coverage starts from: the core of attention peaks and the instruction anchors."""

import math

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.formulas.ops import ranking

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

    A candidate that is too similar to a kept anchor is skipped for good, so the next anchor is always the best
    candidate still allowed. The search runs to its limit without asking the device whether it is over already.
    """
    limit = min(config.anchor_limit, math.floor(config.anchor_fraction * count))
    initial = min(max(2, count // INITIAL_ANCHOR_DIVISOR), limit)
    if limit == 0:
        return torch.empty(0, dtype=torch.long, device=distribution.device)
    redundant = (affinity >= config.anchor_redundancy).fill_diagonal_(True)
    allowed = distribution[None].clone()  # [1, N], -inf for tokens out of the race
    values, anchors = [], []
    for _ in range(limit):
        value, anchor = allowed.max(1)
        values.append(value)
        anchors.append(anchor)
        allowed.masked_fill_(redundant.index_select(0, anchor), -torch.inf)
    found = torch.cat(anchors)
    return found[(torch.cat(values) >= 0) & (_novel_before(affinity, found, initial, config) < NOVEL_ANCHORS)]


def _novel_before(affinity: Tensor, anchors: Tensor, initial: int, config: CovistConfig) -> Tensor:
    """How many of the anchors before each, [anchors], were unlike the `initial` first ones and not among them."""
    to_initial = affinity.index_select(0, anchors[:initial]).amax(0)
    novel = 1 - to_initial.index_select(0, anchors) > config.anchor_novelty
    novel[:initial] = False
    return novel.cumsum(0) - novel.long()


def protected_tokens(
    attention: Tensor, anchors: Tensor, count: int, concentration: float, config: CovistConfig
) -> Tensor:
    """Core first, then anchors, truncated so that coverage keeps its free places -> distinct indices [any]."""
    protected = ranking(attention)[: core_size(count, concentration, config)]
    if anchors.shape[0]:
        in_core = torch.zeros_like(attention, dtype=torch.bool).index_fill_(0, protected, True)
        protected = torch.cat([protected, anchors[~in_core[anchors]]])
    return protected[: max(0, count - free_places(count))]
