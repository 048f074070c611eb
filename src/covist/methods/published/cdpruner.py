"""CDPruner: a determinantal point process conditioned on the question."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.relevance import Sign, SignedRelevance, clip_relevance, embedding_cosines, spread
from covist.methods.shared import cosine, first_best

RELEVANCE_WEIGHT = 0.5  # theta of the exponential form


@register_published
class CDPruner(SignedRelevance):
    name = "cdpruner"
    default_positions = "reindex"
    options: ClassVar = {
        "relevance": "negated: CLIP's cosine to the question with the published sign; plain: with the opposite sign; "
        "none: diversity alone. Without CLIP's text space, the cosine is always plain unless this is none"
    }

    def select(self, image: ImageContext, count: int) -> Tensor:
        similarity = cosine(image.signals.embeddings)
        return most_probable_subset(similarity, question_relevance(image, self.relevance), count)


def question_relevance(image: ImageContext, sign: Sign | None = "negated") -> Tensor:
    """r, [N]."""
    ones = torch.ones(image.grid.size, dtype=torch.float32, device=image.positions.device)
    if sign is None:
        return ones
    by_clip = clip_relevance(image, sign)
    if by_clip is not None:
        return spread(by_clip)
    by_embedding = embedding_cosines(image)
    if by_embedding is None:
        return ones
    return torch.exp(RELEVANCE_WEIGHT / (2 * (1 - RELEVANCE_WEIGHT)) * spread(by_embedding.mean(-1)))


def most_probable_subset(similarity: Tensor, relevance: Tensor, count: int) -> Tensor:
    """Greedy MAP of the DPP with kernel diag(r) S diag(r) -> tokens [count] in the order of choice, or fewer."""
    return largest_determinant(relevance[:, None] * similarity * relevance, count)


def largest_determinant(kernel: Tensor, count: int, floor: float = 0.0) -> Tensor:
    """Rows of a kernel [N, N] that greedily maximise its determinant -> [count] in the order of choice.

    floor: what every token adds at least; gains are equal if what exceeds it is, up to rounding

    It returns fewer if the determinant is exhausted: the published loop then takes the root of a negative number and
    only repeats itself.
    """
    gain = kernel.diagonal().clone()  # d^2, the factor by which each token would multiply the determinant
    factors = kernel.new_zeros(count, len(kernel))
    chosen, gained = [], []
    for step in range(count):
        best = first_best(gain - floor)
        chosen.append(best)
        gained.append(gain[best])
        factors[step] = (kernel[best] - factors[:step, best] @ factors[:step]) / gain[best].sqrt()
        gain = gain - factors[step].square()
        gain[best] = -torch.inf
    distinct = (torch.stack(gained) > 0).cumprod(0).sum()  # read after the loop, so that no step waits for the device
    return torch.stack(chosen)[: max(1, int(distinct))]
