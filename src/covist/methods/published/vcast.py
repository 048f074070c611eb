"""V-CAST: frames at turns of the video get more tokens; in each frame, large ones far from its mean stay."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.frames import by_frame, largest_by_frame
from covist.methods.published import register_published
from covist.methods.shared import largest

TEMPERATURE, EPSILON = 0.7, 1e-6
STILL = 1e-5
"""Length of a step between unit vectors that may come from rounding."""
COUNTS_ALIKE = 1e-4
"""Parts of a token by which equal counts of frames may differ, because of rounding."""


@register_published
class VCast(Method):
    name = "v-cast"

    def select(self, image: ImageContext, count: int) -> Tensor:
        tokens = by_frame(image.signals.embeddings, image.grid).float()
        weights = (curvature(tokens) / TEMPERATURE).softmax(0)
        return largest_by_frame(scores(tokens), allocate(weights, count, most=tokens.shape[1]))


def curvature(tokens: Tensor) -> Tensor:
    """How much the path of the mean tokens turns at each frame of [F, n, d] -> [F]; 1 at both ends."""
    steps = normalize(tokens.mean(1), dim=-1, eps=EPSILON).diff(dim=0)
    steps = steps * (steps.norm(dim=-1, keepdim=True) > STILL)
    turns = 1 - cosine_similarity(steps[:-1], steps[1:], dim=-1, eps=EPSILON)
    ends = tokens.new_ones(min(2, len(tokens)))
    return torch.cat([ends[:1], turns, ends[1:]])


def allocate(weights: Tensor, total: int, most: int) -> list[int]:
    """Divide `total` among frames in proportion to their weights [F], one token to each first if there are enough.

    All that is left after rounding down goes to the frame with the largest fraction until it is full, as published.
    """
    least = int(total >= len(weights))
    wanted = weights / weights.sum() * (total - least * len(weights))
    whole = (wanted + COUNTS_ALIKE).floor()
    counts = [least + min(own, most - least) for own in whole.long().tolist()]
    left = total - sum(counts)
    for number in largest(((wanted - whole) / COUNTS_ALIKE).round(), len(counts)).tolist():
        gift = min(left, most - counts[number])
        counts[number], left = counts[number] + gift, left - gift
    return counts


def scores(tokens: Tensor) -> Tensor:
    """1 - cosine to the mean token of the frame, plus the norm, min-max in the frame: [F, n, d] -> [F, n]."""
    unlike = 1 - cosine_similarity(tokens, tokens.mean(1, keepdim=True), dim=-1, eps=EPSILON)
    norms = tokens.norm(dim=-1)
    low, high = norms.amin(1, keepdim=True), norms.amax(1, keepdim=True)
    return unlike + (norms - low) / (high - low + EPSILON)
