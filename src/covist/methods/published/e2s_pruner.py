"""E2S-Pruner: attention heads give evidence for and against a token, and the evidence of all cuts is combined."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import share_groups
from covist.methods.inside import DropInside, text_rows
from covist.methods.layout import windows
from covist.methods.published import register_published
from covist.methods.shared import largest, turns
from covist.state import VisualState

WINDOWS = 4  # per side
SPREAD_SHARE = 0.1


@register_published
class E2SPruner(DropInside):
    name = "e2s-pruner"
    cuts = (3, 17, 22)
    presets = {192: (194, 148, 96), 128: (122, 48, 42), 64: (20, 8, 1)}
    reads_preceding_layer = True

    def memory(self, image: ImageContext) -> Tensor:
        """The combined opinion of the cuts so far about each token [N, 3]; zeros say nothing, and change nothing."""
        return torch.zeros(image.grid.size, 3, dtype=torch.float32, device=image.positions.device)

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        opinion = combined(view.memory[state.indices], head_opinion(text_logits(view)).detach())
        view.memory[state.indices] = opinion
        window = windows(state.grid, WINDOWS, view.visual.device)[state.indices]
        return largest(spread(retained(opinion), window), count)


def text_logits(view: DecoderView) -> Tensor:
    """Logits of the text after the image for each representative, before the softmax, mean over tokens [heads, K]."""
    query = view.queries(text_rows(view)).mean(1)[..., None]  # [heads, head width, 1]
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
    is_best = turns(largest(score, len(score)), window) == 0
    return (1 - SPREAD_SHARE) * score + SPREAD_SHARE * is_best
