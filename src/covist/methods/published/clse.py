"""CLSE: tokens to which the last prompt token attends, at first also by how a layer changed their fine structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from covist.contract.views import DecoderView
from covist.formulas.ops import round_half_up
from covist.methods.inside import NominalCounts, ScoreInside, at_first_cut, attention_to_image, last_prompt_row
from covist.methods.published import register_published
from covist.schedule import Schedule

PUBLISHED = {192: (330, 210, 62), 128: (220, 140, 41), 64: (110, 70, 20)}
WIDTH = 1.2  # of the Gaussian that is removed from the spectrum, in periods per view
TEMPERATURE = 0.1
SMALLEST = 1e-6


@register_published
class CLSE(NominalCounts, ScoreInside):
    name = "clse"
    cuts = (1, 11, 21)
    shape = (1.72, 1.09, 0.32)
    reads_preceding_layer = True

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        made = super().schedule(layers, budget, tokens)
        return made if len(made.stages) == 1 else replace(made, cache_cut_from=0, counts_prefill=True)

    def nominal_counts(self, budget: int) -> Sequence[int]:
        return PUBLISHED.get(budget) or [round_half_up(part * budget) for part in self.shape]

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
