"""FastVID: in segments of similar frames, salient tokens stay and the others merge into dense ones of some frames."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.formulas.ops import first_largest, ranking
from covist.methods.density import peak_scores, scaled_distances
from covist.methods.frames import Kept, by_frame, checked_similarity, similar_segments
from covist.methods.published import register_published
from covist.methods.shared import TIE, cluster_means, cosine, received_attention
from covist.reduction import Reduction
from covist.state import VisualState

SEGMENTS, CONTEXT_SHARE, ANCHOR_STEP, NEIGHBOURS, OWN_SHARE = 8, 0.4, 4, 4, 0.6


@register_published
class FastVID(Method):
    name = "fastvid"
    writes_content = True
    options: ClassVar = {"similarity": "a segment ends where the cosine of successive frames is below this"}

    def __init__(self, similarity: float = 0.9, **options: Any):
        super().__init__(**options)
        self.similarity = checked_similarity(similarity)

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        attention = received_attention(image.signals)
        tokens, salience = (by_frame(values.float(), image.grid) for values in (state.features, attention))
        segments = similar_segments(tokens.mean(1), self.similarity, SEGMENTS)
        kept = Kept.by_segment(segments, partial(compress, each=count // len(tokens)), tokens, salience)
        return kept.fitted(state, count, attention)


def compress(tokens: Tensor, attention: Tensor, each: int) -> Kept:
    """What a segment [L, n, d] keeps, `each` in every frame on average, by attention [L, n]."""
    frames, places = attention.shape
    context = int(CONTEXT_SHARE * each)
    order = (
        attention.argsort(descending=True, stable=True) + places * torch.arange(frames, device=tokens.device)[:, None]
    )
    chosen, rest = order.split([each - context, places - each + context], dim=1)
    rest, flat = rest.sort(dim=1).values, tokens.flatten(0, 1)
    anchor_frames = range(frames - 1, -1, -ANCHOR_STEP)
    anchors_each = min(context * frames // len(anchor_frames), rest.shape[1])
    parts = [merge(flat, rest, rest[frame], anchors_each) for frame in anchor_frames]
    anchors, features, sizes = (torch.cat(own) for own in zip(*parts, strict=True))
    return Kept(chosen.flatten(), anchors, features, sizes)


def merge(tokens: Tensor, pool: Tensor, candidates: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The densest `count` of the candidates, with a share of all tokens of the pool that resemble each of them most.

    Returns their indices, contents [count, d] and how many tokens of the pool each has.
    """
    scores = peak_scores(scaled_distances(tokens[candidates]), NEIGHBOURS)
    anchors = candidates[ranking(scores)[:count]].sort().values
    if not count:
        return anchors, tokens[anchors], tokens[anchors, 0]
    members = tokens[pool.flatten()]
    nearest = first_largest(cosine(members, tokens[anchors]), TIE, dim=-1)
    means, sizes = cluster_means(members, nearest, count)
    own = (1 / (sizes + 1)).clamp(min=OWN_SHARE)[:, None]
    return anchors, own * tokens[anchors] + (1 - own) * means, sizes
