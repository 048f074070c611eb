"""TOPS: relevance, diversity and coverage in one score, before the decoder and twice inside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from covist.contract.reading import readable_depth
from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import mass_norm, round_half_up
from covist.methods.inside import ChooseInside, NominalCounts, Stepped, attention_to_image, scaled_depths
from covist.methods.published import register_published
from covist.methods.published._raters import pointed_at_now, raters
from covist.methods.shared import Coverage, cosine, first_best, received_attention
from covist.state import VisualState

DIVERSITY, COVERAGE, MORE_COVERAGE = 0.5, 0.5, 1.0
FEW = 1 / 6  # of the tokens, half-way between the budgets 128 and 64 of 576
COPY = 1 - 1e-5
SMALLEST = 1e-6


@register_published
class TOPS(NominalCounts, Stepped, ChooseInside):
    name = "tops"
    default_positions = "reindex"
    cuts = (0, 12, 24)
    shape = (2.0, 1.0, 0.25)

    def nominal_counts(self, budget: int) -> Sequence[int]:
        return [round_half_up(part * budget) for part in self.shape]

    def select(self, image: ImageContext, count: int) -> Tensor:
        return balanced(received_attention(image.signals), cosine(image.signals.embeddings), count, COVERAGE)

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        relevance = attention_to_image(view, raters(view, pointed_at_now))
        weight = self.coverage_weight(view, count, state.grid.size)
        return balanced(relevance, cosine(view.hidden[view.visual]), count, weight)

    def coverage_weight(self, view: DecoderView, count: int, tokens: int) -> float:
        """Lambda at this depth; the stage's share of the published counts shows which budget `count` belongs to."""
        decoder = view.decoder
        cuts = scaled_depths(decoder.layers, self.cuts)
        stages = dict(zip((cut and readable_depth(self, decoder, cut) for cut in cuts), self.shape, strict=True))
        return COVERAGE if count >= stages.get(view.depth, 1.0) * FEW * tokens else MORE_COVERAGE


def balanced(relevance: Tensor, similarity: Tensor, count: int, coverage_weight: float) -> Tensor:
    """Greedy choice by relevance [N] and the cosines of all pairs [N, N] -> [count] in the order of choice."""
    relevance = mass_norm(relevance.double()) * len(relevance)  # whatever the image's total attention
    coverage = Coverage(similarity.masked_fill(similarity > COPY, 1), floor=-1)
    free = torch.ones_like(relevance, dtype=torch.bool)
    chosen = [first_best(relevance)]
    for _ in range(count - 1):
        coverage.add(chosen[-1])
        free[chosen[-1]] = False
        diversity = 1 - coverage.covered
        score = over_mean(relevance, free) + DIVERSITY * over_mean(diversity, free)
        score = score + coverage_weight * over_mean(coverage.gains, free)
        chosen.append(first_best(score.masked_fill(~free, -torch.inf)))
    return torch.stack(chosen)


def over_mean(values: Tensor, free: Tensor) -> Tensor:
    """Values [N] divided by their mean over the free tokens."""
    return values / (values * free).sum().div(free.sum()).clamp(min=SMALLEST)
