"""TOPS: relevance, diversity and coverage in one score, before the decoder and twice inside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.reading import readable_depth
from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import mass_norm, round_half_up
from covist.methods.inside import ChooseInside, NominalCounts, Stepped, attention_to_image, scaled_depths
from covist.methods.published._raters import pointed_at_now, raters
from covist.methods.registry import register_method
from covist.methods.shared import Coverage, cosine, first_best, received_attention
from covist.state import VisualState

DIVERSITY, COVERAGE, MORE_COVERAGE = 0.5, 0.5, 1.0
FEW = 1 / 6  # of the tokens, half-way between the budgets 128 and 64 of 576
COPY = 1 - 1e-5
SMALLEST = 1e-6


@register_method
class TOPS(NominalCounts, Stepped, ChooseInside):
    name = "tops"
    default_positions = "reindex"
    cuts = (0, 12, 24)
    shape = (2.0, 1.0, 0.25)
    info = MethodInfo(
        paper=(
            "TOPS: First-Principles Visual Token Pruning via Constructing Token Optimal Preservation Sets for "
            "Efficient MLLM Inference (arXiv 2606.27161)"
        ),
        acts="before the decoder and before layers 12/32 and 24/32",
        signals="class attention, embeddings, attention of the rating text tokens, decoder states",
        budget="layer average K: 1.7 K, 0.8 K and 0.2 K; counts=nominal keeps 2 K, K and K / 4",
        criterion="attention",
        needs=("class-attention", "embeddings", "decoder-attention", "decoder-states"),
        licence="unknown",
        published=(
            "The first token has the most class attention; each next token has the largest relevance + 0.5 diversity + "
            "lambda coverage. Diversity is 1 - the largest cosine to those chosen; coverage is what a token adds to "
            "the sum of every token's largest cosine to those chosen; each term is divided by its mean. Before the "
            "decoder this uses projected embeddings, class attention and lambda 0.5; before layers 12 and 24 of 32 (15 "
            "and 30 of 40) it uses hidden states, the attention of rating text tokens, and lambda 0.5 for 128 tokens, "
            "1 for 64 and 32. Counts are 2 K, K and K / 4: layer means of 152, 76 and 38 for 128, 64 and 32. Positions "
            "are renumbered."
        ),
        ours=(
            "No code is published. Counts are solved for the layer-mean budget in the published proportions unless "
            "counts=nominal. The paper does not define the raters: here they follow SparseVLM's rule on the current "
            "hidden states, and their attention is that of the next layer. Means are over the tokens that can still be "
            "chosen, as in the algorithm box (the main text uses min-max). Lambda changes half-way between the "
            "published budgets, at a sixth of the tokens. Cosines above 1 - 1e-5 count as 1, so that rounding does not "
            "distinguish copies. The paper has other settings for Qwen2.5-VL (layers 12 and 16 of 28; 512/281/77, "
            "256/139/39 and 128/71/19 tokens; lambda 0.4), which are not used: every decoder has the settings of "
            "LLaVA, with the layers scaled to its depth. Without a class token, the mean received attention is used. "
            "Without text after the image, the last prompt token rates it."
        ),
        checked="reference: TOPS (order of choice, raters, kept tokens at every stage; published layer means)",
    )

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
