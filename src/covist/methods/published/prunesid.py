"""PruneSID: groups tokens by principal components and keeps the salient, dissimilar ones of each group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.shared import cosine, largest, received_attention, rewritten, turns, without
from covist.reduction import Reduction
from covist.state import VisualState

TOKENS_PER_GROUP, TOKENS_PER_LIMIT, MOST_PER_GROUP = 4, 64, 5
THRESHOLD_TOKENS = 32
NO_VARIANCE = 1e-10
"""Share of the largest variance below which a component is ignored."""


@register_published
class PruneSID(Method):
    name = "prunesid"
    default_positions = "reindex"
    writes_content = True

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        class_features = signals.class_features
        patches = count - (class_features is not None)
        kept = choose(signals.hidden, received_attention(signals), count, patches)
        if class_features is None:
            return Reduction(state.restrict(kept.sort().values))
        place = without(kept, state.count)[:1]
        with_class = rewritten(state, place, signals.project(class_features[:1]))
        return Reduction(with_class.restrict(torch.cat([kept, place]).sort().values))


def choose(hidden: Tensor, attention: Tensor, budget: int, patches: int) -> Tensor:
    """The tokens [patches] to keep for a budget, from encoder features [N, v] and attention [N]."""
    if patches == 0:
        return attention.new_empty(0, dtype=torch.long)
    group = groups(hidden, max(1, budget // TOKENS_PER_GROUP))
    similarity = cosine(hidden)
    survives = survivors(similarity, attention, group, budget / THRESHOLD_TOKENS * mean_cosine(similarity))
    sizes = group.bincount()
    places = quotas(sizes.tolist(), group[survives].bincount(minlength=len(sizes)).tolist(), budget, patches)
    order = largest(attention, len(attention))
    order = order[(~survives[order]).byte().argsort(stable=True)]  # survivors, then the others, by attention
    stays = turns(order, group) < torch.tensor(places, device=order.device)[group]
    return stays.nonzero()[:, 0]


def groups(hidden: Tensor, count: int) -> Tensor:
    """The principal component that each token [N, v] loads on most, [N]."""
    columns = hidden.float().sigmoid().double()  # a token is a column of the published matrix
    columns = columns - columns.mean(-1, keepdim=True)
    if len(columns) <= columns.shape[1]:
        variance, loadings = torch.linalg.eigh(columns @ columns.T)
    else:  # the same components from the smaller side
        variance, directions = torch.linalg.eigh(columns.T @ columns)
        loadings = columns @ directions / variance.clamp(min=NO_VARIANCE * variance[-1]).sqrt()
    loadings = loadings * (variance > NO_VARIANCE * variance[-1])
    return loadings.flip(-1)[:, :count].abs().argmax(-1)


def mean_cosine(similarity: Tensor) -> Tensor:
    """Mean cosine over all pairs of different tokens."""
    return similarity.triu(1).sum() / (len(similarity) * (len(similarity) - 1) / 2)


def survivors(similarity: Tensor, attention: Tensor, group: Tensor, threshold: Tensor) -> Tensor:
    """Non-maximum suppression inside the groups -> which tokens survive [N] bool.

    A token is suppressed if an earlier token of its group survives and resembles it. Starting from all tokens, each
    round settles at least one more link of such chains, so the result is that of a sequential pass.
    """
    order = largest(attention, len(attention))
    before = torch.ones_like(similarity, dtype=torch.bool).tril(-1)
    rivals = (similarity > threshold)[order][:, order] & (group[order][:, None] == group[order]) & before
    rivals, survives = rivals.float(), torch.ones_like(attention)
    for _ in range(len(order)):
        previous, survives = survives, (rivals @ survives == 0).float()
        if torch.equal(previous, survives):
            break
    return torch.empty_like(survives).index_copy_(0, order, survives).bool()


def quotas(sizes: list[int], survived: list[int], budget: int, patches: int) -> list[int]:
    """Places of each group, `patches` in total."""
    lower = [min(1, size) for size in sizes]
    most = MOST_PER_GROUP * math.ceil(budget / TOKENS_PER_LIMIT)
    upper = [min(most, size, left) for size, left in zip(sizes, survived, strict=True)]
    while sum(upper) < budget:
        upper = [min(limit + 1, size) for limit, size in zip(upper, sizes, strict=True)]
    rest, total = patches - sum(lower), sum(survived)
    ends = [round(rest * sum(survived[: number + 1]) / total) for number in range(len(sizes))]
    shares = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    places = [min(a + b, limit) for a, b, limit in zip(lower, shares, upper, strict=True)]
    by_survivors = sorted(range(len(sizes)), key=lambda number: -survived[number])
    while sum(places) < patches:
        for number in by_survivors:
            places[number] += places[number] < upper[number] and sum(places) < patches
    return places
