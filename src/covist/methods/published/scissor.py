"""LLaVA-Scissor: connected components of similar tokens, in each frame, then in the video, become one token each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.formulas.ops import first_largest, unit_rows
from covist.methods.frames import by_frame
from covist.methods.published import register_published
from covist.methods.shared import TIE, cluster_means, cosine, largest, rewritten, turns
from covist.reduction import Reduction
from covist.state import VisualState

STEPS = 14
"""Halvings of the interval in which the threshold lies."""


@register_published
class Scissor(Method):
    name = "llava-scissor"
    default_positions = "reindex"
    writes_content = True

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        tokens = by_frame(state.features.float(), image.grid)
        found = most_components(tokens, count).filled(tokens.flatten(0, 1), count)
        features, cluster, sizes = found.spread(tokens.flatten(0, 1))
        return Reduction(rewritten(state, found.places, features, sizes).restrict(found.places), assignment=cluster)


@dataclass(frozen=True)
class Components:
    """Tokens that stand for connected tokens."""

    places: Tensor  # [S] indices of the tokens that are most connected, increasing
    means: Tensor  # [S, d]

    def filled(self, tokens: Tensor, count: int) -> Components:
        """With further ones of the tokens [N, d], those that resemble none of these, up to `count`."""
        closest = cosine(tokens, self.means).amax(-1)
        added = largest(-closest.index_fill(0, self.places, torch.inf), count - len(self.places))
        places, order = torch.cat([self.places, added]).sort()
        return Components(places, torch.cat([self.means, tokens[added]])[order])

    def spread(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Let every token [N, d] join the component that it resembles most: (contents [S, d], component [N], sizes)."""
        cluster = first_largest(cosine(tokens, self.means), TIE, dim=-1)
        means, sizes = cluster_means(tokens, cluster, len(self.means))
        contents = (self.means + sizes[:, None] * means) / (1 + sizes[:, None])
        return contents, cluster, sizes.clamp(min=1)


def most_components(tokens: Tensor, count: int) -> Components:
    """As many components of the tokens [F, n, d] as a threshold gives, but no more than `count`."""
    low, high = -1.0, 1.0
    best = connected_twice(tokens, low - 1)  # a single one
    for _ in range(STEPS):
        if len(best.places) == count:
            break
        middle = (low + high) / 2
        found = connected_twice(tokens, middle)
        if len(found.places) <= count:
            low, best = middle, max(best, found, key=lambda one: len(one.places))
        else:
            high = middle
    return best


def connected_twice(tokens: Tensor, threshold: float) -> Components:
    """Components of the tokens of each frame [F, n, d], and of their means."""
    first = connected(tokens, threshold)
    second = connected(first.means[None], threshold)
    return Components(first.places[second.places], second.means)


def connected(tokens: Tensor, threshold: float) -> Components:
    """Components of tokens [F, n, d] of the same frame whose cosine is above the threshold."""
    unit = unit_rows(tokens)
    similar = unit @ unit.transpose(1, 2) > threshold
    first = tokens.shape[1] * torch.arange(len(tokens), device=tokens.device)[:, None]
    _, component = (first + lowest_connected(similar)).flatten().unique(return_inverse=True)
    order = largest(similar.sum(-1).flatten(), len(component))
    places = (turns(order, component) == 0).nonzero()[:, 0]
    means, _ = cluster_means(tokens.flatten(0, 1), component, len(places))
    return Components(places, means[component[places]])


def lowest_connected(similar: Tensor) -> Tensor:
    """The lowest index that each row is connected with, directly or not: [F, n, n] -> [F, n]."""
    rows = similar.shape[1]
    own = torch.arange(rows, dtype=torch.int32, device=similar.device)
    lowest = own.expand(similar.shape[:2])
    similar = similar | torch.eye(rows, dtype=torch.bool, device=similar.device)
    while True:
        reached = torch.where(similar, lowest[:, None], rows).amin(-1)
        reached = reached.gather(1, reached.long())  # what is lowest for the lowest one is so for all
        if torch.equal(reached, lowest):
            return lowest.long()
        lowest = reached
