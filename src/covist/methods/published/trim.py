"""TRIM: the tokens that CLIP relates most to the question, and one token for the mean of all others."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.views import ImageContext
from covist.methods.layout import even_cells
from covist.methods.published import register_published
from covist.methods.relevance import SignedRelevance, embedding_cosines, in_text_space, sign_of
from covist.methods.shared import largest, represented, without
from covist.reduction import Reduction
from covist.state import VisualState


@register_published
class TRIM(SignedRelevance):
    name = "trim"
    default_positions = "reindex"
    writes_content = True

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        removed = without(self.closest(image, count - 1), state.count)
        hidden = image.signals.hidden
        mean = image.signals.project(hidden[removed].float().mean(0, keepdim=True).to(hidden.dtype))
        return represented(state, removed, removed[-1:], torch.zeros_like(removed), mean)

    def closest(self, image: ImageContext, count: int) -> Tensor:
        """The tokens that are most related to the question [count]."""
        score = self.score(image)
        return even_cells(image.grid, count)[1].to(image.positions.device) if score is None else largest(score, count)

    def score(self, image: ImageContext) -> Tensor | None:
        """The score [N] before the softmax, which keeps the order; None without a question."""
        if self.relevance is None:
            return None
        in_space = in_text_space(image)
        if in_space is not None:
            patches, pooled = in_space
            return sign_of(self.relevance) * (patches @ pooled.T).mean(-1).to(image.positions.device)
        cosines = embedding_cosines(image)
        return None if cosines is None else cosines.mean(-1)
