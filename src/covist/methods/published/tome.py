"""ToMe after the encoder: bipartite matching in rounds, size-weighted means, proportional attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method, plain_rule
from covist.contract.views import ImageContext
from covist.methods.layout import allot
from covist.methods.published import register_published
from covist.methods.shared import cosine
from covist.reduction import Reduction
from covist.state import VisualState

ROUNDS = 24  # blocks of the published encoder


@register_published
class ToMe(Method):
    name = "tome"
    default_positions = "reindex"
    writes_content = True

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        merged = merge(state.features, merges_per_round(state.count, count))
        raster = merged.tokens.argsort()
        reduced = state.restrict(merged.tokens[raster])
        features = merged.features[raster].to(state.features.dtype)
        return Reduction(
            reduced.replace(features=features, weights=merged.sizes[raster]),
            assignment=raster.argsort()[merged.assignment],
        )

    def attention_rule(self, decoder: Decoder) -> AttentionRule:
        return plain_rule(decoder.layers, decoder.heads)


@dataclass(frozen=True)
class Merged:
    """Tokens after some rounds, in the order that decides the next round's split."""

    features: Tensor  # [T, d] size-weighted means
    sizes: Tensor  # [T]
    tokens: Tensor  # [T] original token whose index each has
    assignment: Tensor  # [N] row that represents each original token


def merges_per_round(tokens: int, count: int) -> list[int]:
    """How many tokens each round merges so that `count` of `tokens` remain; the numbers differ by at most one."""
    planned = allot(tokens - count, [1] * ROUNDS)
    rounds: list[int] = []
    while tokens > count:
        most = planned[len(rounds)] if len(rounds) < ROUNDS else planned[0]
        rounds.append(min(most, tokens - count, tokens // 2))
        tokens -= rounds[-1]
    return rounds


def merge(features: Tensor, rounds: list[int]) -> Merged:
    """Merge tokens [N, d] round by round."""
    every = torch.arange(len(features), device=features.device)
    merged = Merged(features.float(), torch.ones_like(every, dtype=torch.float32), every, every)
    for merges in rounds:
        merged = merge_once(merged, merges)
    return merged


def merge_once(before: Merged, merges: int) -> Merged:
    """Merge the `merges` even tokens that resemble an odd token most into that token."""
    best, target = cosine(before.features[::2], before.features[1::2]).max(-1)
    edges = best.argsort(descending=True, stable=True)
    merging, left = edges[:merges], edges[merges:]
    rows = torch.cat([2 * left, torch.arange(1, len(before.sizes), 2, device=left.device)])  # of the tokens that stay
    place = torch.empty_like(before.tokens)  # row after the round
    place[rows] = torch.arange(len(rows), device=rows.device)
    place[2 * merging] = len(left) + target[merging]
    sizes = torch.zeros_like(before.sizes[rows]).index_add_(0, place, before.sizes)
    weighted = before.features * before.sizes[:, None]
    sums = torch.zeros_like(before.features[rows]).index_add_(0, place, weighted)
    return Merged(sums / sizes[:, None], sizes, before.tokens[rows], place[before.assignment])
