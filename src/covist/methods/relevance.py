"""How relevant each token is to the question, as CDPruner, AnchorPrune and others measure it.

With CLIP's text space: the *negated* cosine of patch and text, because the patches of CLIP's penultimate layer
anti-correlate with text that describes them. Without it: the cosine of projected embeddings and the question's input
embeddings in the decoder, not negated. A text of more than CLIP's 77 tokens is cut into segments whose cosines are
averaged; here each segment has its own begin and end token.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.shared import TIE, cosine

Sign = Literal["negated", "plain"]

ANSWER_HINTS = (
    "Answer the question using a single word or phrase.",
    "Answer with the option's letter from the given choices directly.",
)
"""Hints that benchmarks append to a question; they say nothing about the image."""


class SignedRelevance(Method):
    """A method that uses CLIP's similarity to the question, with a sign that the user may reverse."""

    uses_clip_text = True
    options: ClassVar = {
        "relevance": "negated: CLIP's similarity to the question with the published sign; plain: with the opposite "
        "sign; none: without it"
    }

    def __init__(self, relevance: Sign | None = "negated", **options: Any):
        super().__init__(**options)
        if relevance not in ("negated", "plain", None):
            raise CovistError(f"relevance={relevance!r}: choose negated, plain or none")
        self.relevance = relevance


def bare_question(text: str) -> str:
    for hint in ANSWER_HINTS:
        text = text.replace(hint, " ")
    return " ".join(text.split())


def clip_relevance(image: ImageContext, sign: Sign = "negated") -> Tensor | None:
    """Signed mean cosine of every token with the pooled text [N]; None without text or CLIP's text space."""
    in_space = in_text_space(image)
    return None if in_space is None else sign_of(sign) * cosine(*in_space).mean(-1).to(image.positions.device)


def in_text_space(image: ImageContext) -> tuple[Tensor, Tensor] | None:
    """Tokens [N, p] and the pooled question [segments, p] in CLIP's text space; None without text or that space."""
    tower, patches, question = image.text_tower, image.patch_text_features, bare_question(image.instruction.text)
    if tower is None or patches is None or not question:
        return None
    return patches, tower.encode_segments(question)


def sign_of(sign: Sign) -> int:
    return -1 if sign == "negated" else 1


def embedding_cosines(image: ImageContext) -> Tensor | None:
    """Cosines of every token with the instruction's input embeddings in the decoder [N, I]; None if it is empty."""
    if not len(image.instruction.embeddings):
        return None
    return cosine(image.signals.embeddings, image.instruction.embeddings.to(image.signals.embeddings.device))


def spread(relevance: Tensor, floor: float = 1e-6) -> Tensor:
    """(v - min + floor) / (max - min), which keeps every value positive; ones if all are equal up to rounding."""
    low, high = relevance.aminmax()
    if bool(high - low <= TIE * relevance.abs().max()):
        return torch.ones_like(relevance)
    return (relevance - low + floor) / (high - low)
