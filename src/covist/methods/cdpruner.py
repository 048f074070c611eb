"""CDPruner: a determinantal point process conditioned on the question."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.methods._relevance import clip_relevance, embedding_cosines, spread
from covist.methods._shared import cosine
from covist.methods.registry import register_method

RELEVANCE_WEIGHT = 0.5  # theta of the exponential form
USED_UP = 1e-6


@register_method
class CDPruner(Method):
    name = "cdpruner"
    default_positions = "reindex"
    uses_clip_text = True
    info = MethodInfo(
        paper=(
            "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs (NeurIPS 2025)"
        ),
        acts="before the decoder",
        signals="projected embeddings, CLIP text or the question's input embeddings",
        budget="exactly K in every layer",
        licence="Apache-2.0",
        published=(
            "Kernel diag(r) S diag(r), S the cosine of projected embeddings, r the min-max of the negated CLIP cosine "
            "to the bare question; greedy MAP by incremental Cholesky."
        ),
        ours=(
            "Min and max are taken per image, not over all images of a call. Without CLIP's text space, the rule of "
            "OpenVINO's port applies: positive mean cosine to the question's input embeddings, r <- exp(r / 2). "
            "Without any question the kernel is the similarity alone. Where the determinant is used up (duplicates), "
            "the most relevant tokens follow."
        ),
        checked="golden: cdpruner (relevance, order of choice at 64, kept tokens at 64, 48 and 32)",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        return most_probable_subset(cosine(image.signals.embeddings), relevance(image), count)


def relevance(image: ImageContext) -> Tensor:
    """r, [N]."""
    by_clip = clip_relevance(image)
    if by_clip is not None:
        return spread(by_clip)
    by_embedding = embedding_cosines(image)
    if by_embedding is None:
        return torch.ones(image.grid.size, dtype=torch.float32, device=image.positions.device)
    return torch.exp(RELEVANCE_WEIGHT / (2 * (1 - RELEVANCE_WEIGHT)) * spread(by_embedding.mean(-1)))


def most_probable_subset(similarity: Tensor, relevance: Tensor, count: int) -> Tensor:
    """Greedy MAP of the DPP with kernel diag(r) S diag(r) -> [count] in the order of choice."""
    kernel = relevance[:, None] * similarity * relevance
    gain = kernel.diagonal().clone()  # d^2, what each token would multiply the determinant by
    rest = relevance - relevance.max() - 1  # below every gain: the order once the determinant is used up
    factors = kernel.new_zeros(count, len(kernel))
    chosen: list[Tensor] = []
    for step in range(count):
        alive = gain > USED_UP * relevance.square()
        best = torch.where(alive, gain, rest.masked_fill(gain.isneginf(), -torch.inf)).argmax()
        chosen.append(best)
        scale = torch.where(alive, gain.rsqrt(), torch.zeros_like(gain))[best]
        factors[step] = scale * (kernel[best] - factors[:step, best] @ factors[:step])
        gain = gain - factors[step].square()
        gain[best] = -torch.inf
    return torch.stack(chosen)
