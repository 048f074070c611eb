"""E2S-Pruner: attention heads give evidence for and against a token, and the evidence of all cuts is combined."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import share_groups
from covist.methods.inside import DropInside, last_prompt_row
from covist.methods.layout import windows
from covist.methods.registry import register_method
from covist.methods.shared import largest
from covist.reduction import Reduction
from covist.state import VisualState

WINDOWS = 4  # per side
SPREAD_SHARE = 0.1


@register_method
class E2SPruner(DropInside):
    name = "e2s-pruner"
    cuts = (3, 17, 22)
    presets = {192: (194, 148, 96), 128: (122, 48, 42), 64: (20, 8, 1)}
    info = MethodInfo(
        paper=(
            "E2S-Pruner: Progressive Two-Stage Evidence Fusion for Visual Token Pruning in Vision-Language Models "
            "(arXiv 2608.23253)"
        ),
        acts="after the 3rd, 17th and 22nd layer of 32",
        signals="queries of the text after the image and keys of the preceding layer, places in the image",
        budget="layer average K: all tokens, then solved counts in the published proportions",
        criterion="attention",
        needs=("decoder-attention",),
        licence="unknown",
        published=(
            "In each head, r is the softmax over the N image tokens of the mean over the text of q k / sqrt(d), and p "
            "= N r / (1 + N r). The heads' mean p, weighted by rho = 2 |mean(p) - 0.5| (1 - 2 mean |p - mean(p)|), is "
            "evidence for the token, rho (1 - p) against it, and 1 - rho undecided. Dempster's rule combines it with "
            "the evidence of earlier cuts, with conflict c. The score is 0.9 (1 - (1 - plausibility) (1 - c)), plus "
            "0.1 for the best token of each occupied cell of a 4 x 4 grid. After the 3rd, 17th and 22nd layer of 32, "
            "194/148/96, 122/48/42 or 20/8/0 tokens stay, layer means of exactly 192, 128 and 64."
        ),
        ours=(
            "No code is published, and the paper leaves open which layer is read and what happens to positions: here "
            "the layer that has just run is read, and positions are kept. The text is everything after the image, or "
            "else the last prompt token; queries and keys are rotated; N counts the remaining tokens. At the first cut "
            "nothing is known, so Dempster's rule gives the new evidence and no conflict; later c is the conflict of "
            "this cut with all before it, not a sum over cuts. The best token of a cell is the one with the highest "
            "score, and every view has its own grid. Counts keep the proportions of the published list for the nearest "
            "budget and are solved for the layer mean; one token stays if the published count is 0. By the formula, a "
            "token about which the heads are undecided is more plausible than one with some support. This puts the "
            "method below random tokens on the embedded model (57 against 74 of 100 at 128 tokens, 5 images), where "
            "evidence for minus evidence against would score 64."
        ),
        checked="reference: E2S-Pruner (evidence, combination, score and kept tokens of three cuts; published means)",
    )

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def memory(self, image: ImageContext) -> Tensor:
        """The combined opinion of the cuts so far about each token [N, 3]; zeros say nothing, and change nothing."""
        return torch.zeros(image.grid.size, 3, dtype=torch.float32, device=image.positions.device)

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        started = perf_counter()
        opinions: Tensor = view.memory
        opinions[state.indices] = combined(opinions[state.indices], head_opinion(text_logits(view)).detach())
        outcome = super().reduce(state, view, count)
        return replace(outcome, seconds={"selection": perf_counter() - started})

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        window = windows(state.grid, WINDOWS, view.visual.device)[state.indices]
        return largest(spread(retained(view.memory[state.indices]), window), count)


def text_logits(view: DecoderView) -> Tensor:
    """Logits of the text after the image for each representative, before the softmax, mean over tokens [heads, K]."""
    rows = view.text if len(view.text) else last_prompt_row(view)
    query = view.queries(rows).mean(1)[..., None]  # [heads, head width, 1]
    keys = share_groups(view.keys(view.visual), len(query))
    return (keys @ query)[..., 0] * view.decoder.scale(view.observed_layer)


def head_opinion(logits: Tensor) -> Tensor:
    """Evidence for each token and against it, and a conflict of zero [K, 3], from logits [heads, K]."""
    share = logits.shape[1] * logits.softmax(-1)
    support = share / (1 + share)
    mean = support.mean(0)
    reliability = 2 * (mean - 0.5).abs() * (1 - 2 * (support - mean).abs().mean(0))
    return torch.stack([reliability * mean, reliability * (1 - mean), torch.zeros_like(mean)], dim=-1)


def combined(known: Tensor, new: Tensor) -> Tensor:
    """Dempster's rule for two opinions [K, 3]; the conflict is that of the two."""
    (pro, contra, _), (new_pro, new_contra, _) = known.unbind(-1), new.unbind(-1)
    undecided, new_undecided = 1 - pro - contra, 1 - new_pro - new_contra
    conflict = pro * new_contra + contra * new_pro
    both = [
        belief * other + belief * new_undecided + undecided * other
        for belief, other in ((pro, new_pro), (contra, new_contra))
    ]
    return torch.stack([*(mass / (1 - conflict) for mass in both), conflict], dim=-1)


def retained(opinion: Tensor) -> Tensor:
    """Score [K] of an opinion [K, 3]: one minus the undisputed evidence against a token."""
    _, contra, conflict = opinion.unbind(-1)
    return 1 - contra * (1 - conflict)


def spread(score: Tensor, window: Tensor) -> Tensor:
    """Score [K] with a bonus for the best token of each window [K]."""
    order = largest(score, len(score))
    by_window = order[window[order].argsort(stable=True)]  # window by window, best token first
    is_first = window[by_window].diff(prepend=window.new_tensor([-1])) > 0
    bonus = torch.zeros_like(score).index_fill_(0, by_window[is_first], 1)
    return (1 - SPREAD_SHARE) * score + SPREAD_SHARE * bonus
