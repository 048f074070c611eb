"""CLSE: tokens to which the last prompt token attends, at first also by how a layer changed their fine structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.formulas.ops import round_half_up
from covist.methods.inside import NominalCounts, ScoreInside, at_first_cut, attention_to_image, last_prompt_row
from covist.methods.registry import register_method
from covist.schedule import Schedule

PUBLISHED = {192: (330, 210, 62), 128: (220, 140, 41), 64: (110, 70, 20)}
WIDTH = 1.2  # of the Gaussian that is removed from the spectrum, in periods per view
TEMPERATURE = 0.1
SMALLEST = 1e-6


@register_method
class CLSE(NominalCounts, ScoreInside):
    name = "clse"
    cuts = (1, 11, 21)
    shape = (1.72, 1.09, 0.32)
    info = MethodInfo(
        paper="Spectral Evolution-Guided Token Pruning in Multimodal Large Language Models (ECCV 2026)",
        acts="before layers 1, 11 and 21 of 32, then in the cache of all layers",
        signals="decoder states before and after the first layer, attention of the last prompt token",
        budget=(
            "layer average K of prefill: all tokens, then solved counts; the cache of every layer holds the last "
            "count; counts=nominal keeps 1.72 K, 1.09 K and 0.32 K"
        ),
        criterion="attention",
        needs=("decoder-attention", "decoder-states"),
        licence="Apache-2.0",
        published=(
            "Tokens are dropped before layers 1, 11 and 21 of 32, by the attention of the last prompt token in the "
            "preceding layer, mean over heads. At the first cut this is multiplied by how much the layer has changed a "
            "token's fine structure: low frequencies are removed from the states before and after the layer (Fourier "
            "transform of every channel over the 24 x 24 grid, times 1 - exp(-d^2 / (2 * 1.2^2))), the mean modulus "
            "over channels is s0 and s1, and min(1, |s1 - s0| / (mean s0 + s0 + 1e-6)) is standardised and passed "
            "through a sigmoid at temperature 0.1. For 192, 128 and 64, 330/210/62, 220/140/41 and 110/70/20 tokens "
            "stay (for other budgets 1.72, 1.09 and 0.32 of K), a layer mean of 208, 145 and 81. The dropped tokens "
            "are also removed from the caches of all earlier layers. Original positions."
        ),
        ours=(
            "The counts are solved for a layer mean of prefill unless counts=nominal. The caches are cut once, after "
            "prefill, which leaves in them what three successive cuts would, but holds the full caches longer. Every "
            "view, of any size, has its own transform, with d in periods per view; masked tokens take the mean of the "
            "others. For other depths the layers are scaled; the first cut compares the states before and after the "
            "preceding layer. The standard deviation is that of a sample, plus 1e-6."
        ),
        checked="reference: CLSE (fine structure, score and kept tokens; published counts and layer means)",
    )

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        made = super().schedule(layers, budget, tokens)
        return made if len(made.stages) == 1 else replace(made, cache_cut_from=0, counts_prefill=True)

    def nominal_counts(self, budget: int) -> Sequence[int]:
        return PUBLISHED.get(budget) or [round_half_up(part * budget) for part in self.shape]

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def score(self, view: DecoderView) -> Tensor:
        attention = attention_to_image(view, last_prompt_row(view))
        return attention * evolution(view) if at_first_cut(self, view) else attention


def evolution(view: DecoderView) -> Tensor:
    """How much the preceding layer has changed the fine structure around each token [N], between 0 and 1."""
    before, after = (
        view.signals.grid.per_view(fine_structure, states[view.visual].float())
        for states in (view.observed, view.hidden)
    )
    change = ((after - before).abs() / (before.mean() + before + SMALLEST)).clamp(max=1)
    standardised = (change - change.mean()) / (change.std() + SMALLEST)
    return (standardised / TEMPERATURE).sigmoid()


def fine_structure(states: Tensor) -> Tensor:
    """Mean modulus over channels of a view [rows, columns, d] without its low frequencies."""
    rows, columns = states.shape[:2]
    down = torch.fft.fftfreq(rows, 1 / rows, device=states.device)
    across = torch.fft.rfftfreq(columns, 1 / columns, device=states.device)
    squared = down[:, None] ** 2 + across**2  # [rows, columns // 2 + 1] periods per view
    high_pass = 1 - torch.exp(-squared / (2 * WIDTH**2))
    spectrum = torch.fft.rfft2(states, dim=(0, 1)) * high_pass[..., None]
    return torch.fft.irfft2(spectrum, s=(rows, columns), dim=(0, 1)).abs().mean(-1)
