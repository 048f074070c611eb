"""IVC-Prune: tokens that mark coordinates, and tokens that belong to the foreground."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.formulas.internal import coordinate_signals
from covist.formulas.ops import round_half_up
from covist.methods._inside import DropInside, last_prompt_row
from covist.methods._shared import largest
from covist.methods.registry import register_method
from covist.state import VisualState

COORDINATE_SHARE, SEED_SHARE = 1 / 6, 0.01
QUESTION_OFFSET = 2  # the question begins two tokens after the image


@register_method
class IVCPrune(DropInside):
    name = "ivc-prune"
    cuts = (2,)
    prunes_earlier_layers = True
    info = MethodInfo(
        paper="IVC-Prune: Revealing the Implicit Visual Coordinates in LVLMs for Vision Token Pruning (ICLR 2026)",
        acts="before layer 2/32, then in the cache of all layers",
        signals="rotary angles, values of the layer before",
        budget="layer average K of prefill: all tokens, then a solved count; decoding sees that count everywhere",
        licence="MIT",
        published=(
            "Coordinate tokens have the largest mean cosine and the largest mean sine of their rotary angles; "
            "foreground tokens are close in value space (softmax(v v^T / sqrt(dh)) of the layer before, no rotation) "
            "first to the question, then to question and 1% seeds. The one selection holds for all layers: the cache "
            "of the layers before the cut is pruned too. Original positions."
        ),
        ours=(
            "The published 5% + 5% + 20% become 1/6 + 1/6 + the rest of a count solved for the layer mean of prefill; "
            "the layer of the cut is ours (2 of 32)."
        ),
        checked="golden: ivcprune (coordinate tokens, seeds, foreground and kept tokens at the published shares)",
    )

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        places = round_half_up(COORDINATE_SHARE * count)
        signals = coordinate_signals(state, view.decoder.inverse_frequencies, CovistConfig())
        coordinates = torch.cat([largest(signal, places) for signal in signals]).unique()[:count]
        score = foreground(view, max(1, round_half_up(SEED_SHARE * state.count)))
        score[coordinates] = torch.inf
        return largest(score, count)


def foreground(view: DecoderView, seeds: int) -> Tensor:
    """Closeness in value space to the question and to the tokens closest to it [K]."""
    question = view.text[QUESTION_OFFSET:] if len(view.text) > QUESTION_OFFSET else last_prompt_row(view)
    values = view.values(torch.arange(len(view.observed), device=view.visual.device))  # [kv heads, n, dh]

    def closeness(rows: Tensor) -> Tensor:
        logits = values[:, rows] @ values.transpose(1, 2) * values.shape[-1] ** -0.5
        return logits.softmax(-1).mean((0, 1))[view.visual]

    nearest = view.visual[largest(closeness(question), seeds)]
    return closeness(torch.cat([nearest, question]))
