"""EADP: covers the image, mostly where a few informative tokens of the question point."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.formulas.ops import entropy
from covist.methods.published import register_published
from covist.methods.relevance import Sign, SignedRelevance, bare_question, in_text_space, sign_of, spread
from covist.methods.shared import cosine, greedy_max_coverage, largest

SHARPNESS, TEXT_SHARE, ENTROPY_TEMPERATURE, GLOBAL_SHARE = 100.0, 0.2, 0.01, 0.5
BESIDE = math.exp(-0.5) / (1 + 2 * math.exp(-0.5))  # Gaussian of sigma 1 at -1, 0 and 1, with sum one


@register_published
class EADP(SignedRelevance):
    name = "eadp"
    default_positions = "reindex"
    options: ClassVar = {
        "beta": "exponent of the demand, at least 0; none: 1 for images in CLIP's text space, otherwise 2",
    }

    def __init__(self, relevance: Sign | None = "negated", beta: float | None = None, **options: Any):
        super().__init__(relevance, **options)
        if beta is not None and not (isinstance(beta, (int, float)) and beta >= 0):
            raise CovistError(f"beta={beta!r}: choose a number of at least 0, or none")
        self.beta = beta

    def select(self, image: ImageContext, count: int) -> Tensor:
        similarity = (cosine(image.signals.embeddings) + 1) / 2
        return greedy_max_coverage(self.demand(image)[:, None] * similarity, count)

    def demand(self, image: ImageContext) -> Tensor:
        """w, [N]."""
        if self.relevance is None or (question := in_one_space(image)) is None:
            return torch.ones(image.grid.size, dtype=torch.float32, device=image.positions.device)
        tokens, pooled, states = question
        segments = [segment_relevance(tokens, *text, self.relevance) for text in zip(pooled, states, strict=True)]
        relevance = spread(torch.stack(segments).mean(0)).to(image.positions.device)
        in_clip = tokens is image.patch_text_features
        published = 1.0 if in_clip and image.signals.modality == "image" else 2.0
        return image.grid.smooth(relevance, gaussian).pow(published if self.beta is None else self.beta)


def in_one_space(image: ImageContext) -> tuple[Tensor, Tensor, Tensor] | None:
    """Tokens [N, p], and the pooled text [M, p] and states [M, L, p] of M segments; None without a question.

    They are in CLIP's text space or, without one, in the decoder's.
    """
    in_space = in_text_space(image)
    if in_space is not None and image.text_tower is not None:
        return *in_space, image.text_tower.encode_padded(bare_question(image.instruction.text))
    if not len(image.instruction.embeddings):
        return None
    tokens = image.signals.embeddings
    states = image.instruction.embeddings.to(tokens.device).float()[None]
    return tokens, states.mean(1), states


def segment_relevance(tokens: Tensor, pooled: Tensor, states: Tensor, sign: Sign) -> Tensor:
    """Relevance of tokens [N, p] to the pooled text [p] and to the informative ones of its states [L, p] -> [N]."""
    to_states = sign_of(sign) * cosine(tokens, states)  # [N, L]
    spreads = entropy((SHARPNESS * to_states).softmax(0), dim=0)  # [L]
    telling = largest(-spreads, max(1, int(TEXT_SHARE * len(states))))
    dense = to_states[:, telling] @ (-spreads[telling] / ENTROPY_TEMPERATURE).softmax(0)
    to_pooled = sign_of(sign) * cosine(tokens, pooled[None])[:, 0]
    return GLOBAL_SHARE * to_pooled + (1 - GLOBAL_SHARE) * dense


def gaussian(view: Tensor) -> Tensor:
    """3 x 3 Gaussian of sigma 1 over a view [rows, columns], reflected at borders; skips an axis of length one."""
    for axis, length in enumerate(view.shape):
        if length > 1:
            padded = torch.cat([view.narrow(axis, 1, 1), view, view.narrow(axis, length - 2, 1)], axis)
            beside = padded.narrow(axis, 0, length) + padded.narrow(axis, 2, length)
            view = BESIDE * beside + (1 - 2 * BESIDE) * view
    return view
