"""FlashVID: salient, diverse tokens stay; the others merge along trees through time, then in space; one late cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.views import DecoderView, ImageContext
from covist.errors import CovistError
from covist.formulas.ops import first_largest, unit_rows
from covist.methods.density import merge_by_density
from covist.methods.frames import Kept, by_frame, similar_segments
from covist.methods.inside import ChooseInside, Stepped, attention_to_image, last_prompt_row
from covist.methods.published import register_published
from covist.methods.shared import TIE, largest, received_attention
from covist.reduction import Reduction
from covist.state import VisualState

SEGMENTS, SEGMENT_SIMILARITY, MERGE_SIMILARITY = 8, 0.9, 0.8
SELECTED_SHARE, NEIGHBOURS = 0.7, 7
NOTHING = -1.0
"""The cosine of tokens that are not to be merged."""


@register_published
class FlashVID(Stepped, ChooseInside):
    name = "flashvid"
    writes_content = True
    cuts = (0, 23)  # layer 20 of 28
    shape = (1.25, 0.375)
    reads_preceding_layer = True
    options: ClassVar = {
        "mean": "on: tokens merged through several frames become their mean; off: the sum is divided by the number of "
        "direct members only, as published"
    }

    def __init__(self, mean: bool = False, **options: Any):
        super().__init__(**options)
        if not isinstance(mean, bool):
            raise CovistError(f"mean={mean!r}: choose True or False")
        self.mean = mean

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        attention = received_attention(image.signals)
        tokens, salience = (by_frame(values.float(), image.grid) for values in (state.features, attention))
        each = math.ceil(count / len(tokens))
        segments = similar_segments(tokens.mean(1), SEGMENT_SIMILARITY, SEGMENTS)
        kept = Kept.by_segment(
            segments, lambda own, salient: compress(own, salient * closeness(own), each, self.mean), tokens, salience
        )
        return kept.fitted(state, count, attention)

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        return largest(attention_to_image(view, last_prompt_row(view)), count)


def compress(tokens: Tensor, weight: Tensor, each: int, mean: bool = False) -> Kept:
    """What a segment [L, n, d] keeps, about `each` per frame; it selects by weight [L, n]."""
    selected = math.ceil(SELECTED_SHARE * each)
    chosen = select(tokens, weight, selected)
    plain = chosen.flatten().nonzero()[:, 0]
    if each == selected:
        return Kept(plain, plain[:0], tokens.flatten(0, 1)[:0], weight.flatten()[:0])
    trees = grow(tokens, chosen, each, mean)
    left = (trees.is_root & ~chosen).sum(1).tolist()
    share = (each - selected) * len(tokens) / max(1, sum(left))
    counts = [math.ceil(share * remaining) if share < 1 else remaining for remaining in left]
    parts = cluster(trees, ~chosen, counts)
    return Kept(plain, *(torch.cat(values) for values in zip(*parts, strict=True)))


def closeness(tokens: Tensor) -> Tensor:
    """Products of the tokens of a segment [L, n, d] with its mean token -> [L, n]; they may be negative."""
    return tokens @ tokens.mean((0, 1))


def select(tokens: Tensor, weight: Tensor, count: int) -> Tensor:
    """Which `count` tokens of each frame [L, n, d] have a large weight [L, n] and are far from each other, [L, n].

    The first has the largest second smallest weighted distance; the next ones the largest to the nearest chosen token.
    """
    unit = unit_rows(tokens)
    distance = 1 - unit @ unit.transpose(1, 2)
    distance = distance.masked_fill(distance <= TIE, 0) * weight[:, None]  # [L, from, n]
    frames = torch.arange(len(tokens), device=tokens.device)
    nearest = distance.kthvalue(min(2, tokens.shape[1]), dim=1).values  # [L, n]
    chosen = torch.zeros_like(weight, dtype=torch.bool)
    for step in range(count):
        tolerance = TIE * nearest.abs().amax(1, keepdim=True)
        best = first_largest(nearest.masked_fill(chosen, -torch.inf), tolerance, dim=1)
        chosen[frames, best] = True
        added = distance[frames, best]
        nearest = torch.minimum(nearest, added) if step else added
    return chosen


@dataclass(frozen=True)
class Trees:
    """Tokens of a segment [L, n] that were merged with one of the frame before, and so on."""

    contents: Tensor  # [L, n, d] of the roots
    sizes: Tensor  # [L, n] tokens of the tree
    is_root: Tensor  # [L, n] tokens that were not merged


def grow(tokens: Tensor, chosen: Tensor, each: int, mean: bool = False) -> Trees:
    """Merge the tokens of a segment [L, n, d] that are not chosen [L, n] with the most similar ones a frame earlier.

    At least `each` tokens per frame remain.
    """
    unit = unit_rows(tokens)
    cosines = unit[1:] @ unit[:-1].transpose(1, 2)  # [L - 1, later, earlier]
    cosines = cosines.masked_fill(chosen[1:, :, None] | chosen[:-1, None], NOTHING)
    best, partner = cosines.max(-1)
    joins = best > threshold(best, (tokens.shape[1] - each) * len(tokens))
    sums, sizes, divisors = (list(values.clone()) for values in (tokens, *torch.ones(2, *tokens.shape[:2]).to(tokens)))
    for later in range(len(tokens) - 1, 0, -1):
        merged, target = joins[later - 1], partner[later - 1][joins[later - 1]]
        sums[later - 1].index_add_(0, target, sums[later][merged])
        sizes[later - 1].index_add_(0, target, sizes[later][merged])
        divisors[later - 1].index_add_(0, target, torch.ones_like(sizes[later][merged]))
    divisor = torch.stack(sizes if mean else divisors)[..., None]
    is_root = torch.cat([torch.ones_like(chosen[:1]), ~joins])
    return Trees(torch.stack(sums) / divisor, torch.stack(sizes), is_root)


def threshold(best: Tensor, most: int) -> float:
    """The cosine above which tokens are merged, so that no more than `most` are, from the largest of each token."""
    if int((best > MERGE_SIMILARITY).sum()) <= most:
        return MERGE_SIMILARITY
    return float(best.flatten().kthvalue(best.numel() - most + 1).values) if most else math.inf


def cluster(trees: Trees, free: Tensor, counts: list[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Merge the free roots of each frame into its count of tokens: (indices in the segment, contents, sizes)."""
    places = free.shape[1]
    for frame, count in enumerate(counts):
        roots = (trees.is_root[frame] & free[frame]).nonzero()[:, 0]
        points, own_sizes = trees.contents[frame][roots], trees.sizes[frame][roots]
        centres, means, sizes = merge_by_density(points, own_sizes, count, min(NEIGHBOURS, count))
        yield frame * places + roots[centres], means, sizes
