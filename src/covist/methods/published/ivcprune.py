"""IVC-Prune: tokens that mark coordinates, and tokens that belong to the foreground."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.contract.reading import nearest_frequencies
from covist.contract.views import DecoderView
from covist.formulas.internal import coordinate_signals
from covist.formulas.ops import round_half_up
from covist.methods.inside import PUBLISHED_LAYERS, DropInside, last_prompt_row
from covist.methods.published import register_published
from covist.methods.shared import largest
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

COORDINATE_SHARE, FOREGROUND_SHARE, SEED_SHARE = 0.05, 0.2, 0.01
QUESTION_OFFSET = 2  # the question begins two tokens after the image
WHOLE_CACHES = 1  # number of first layers whose cache is not cut


@register_published
class IVCPrune(DropInside):
    name = "ivc-prune"
    cuts = (16,)
    reads_preceding_layer = True

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        cut = round_half_up(self.cuts[0] * layers / PUBLISHED_LAYERS)
        if budget >= tokens or cut == layers:
            return fixed_schedule(layers, tokens, tokens)
        count = round_half_up((layers * budget - WHOLE_CACHES * tokens) / (layers - WHOLE_CACHES))
        return Schedule(layers, ((0, tokens), (cut, max(1, count))), cache_cut_from=WHOLE_CACHES)

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        cosine, sine = coordinate_signals(state, nearest_frequencies(view.decoder, view.depth), CovistConfig())
        shares = ((cosine, COORDINATE_SHARE), (sine, COORDINATE_SHARE), (foreground(view), FOREGROUND_SHARE))
        return grown_union(shares, count)


def grown_union(shares: Sequence[tuple[Tensor, float]], count: int) -> Tensor:
    """The union [count] of the best tokens by several scores [K], each with its share.

    The sets grow together in the proportions of their shares: a token joins the union as soon as one set reaches it. If
    `count` is the size of the union of the shares themselves, the result is that union.
    """
    reached = []
    for score, share in shares:
        rank = largest(score, len(score)).argsort() + 1
        reached.append(rank / _places(share, len(score)))
    return largest(-torch.stack(reached).amin(0), count)


def foreground(view: DecoderView) -> Tensor:
    """Closeness in value space to the question and to the tokens closest to it [K]."""
    question = view.text[QUESTION_OFFSET:] if len(view.text) > QUESTION_OFFSET else last_prompt_row(view)
    values = view.values(torch.arange(len(view.observed), device=view.visual.device))  # [kv heads, n, dh]
    seeds = largest(closeness(values, question)[view.visual], _places(SEED_SHARE, len(view.visual)))
    return closeness(values, torch.cat([view.visual[seeds], question]))[view.visual]


def closeness(values: Tensor, rows: Tensor) -> Tensor:
    """How much `rows` would attend to every token if the values [kv heads, n, dh] were queries and keys -> [n]."""
    logits = values[:, rows] @ values.transpose(1, 2) * values.shape[-1] ** -0.5
    return logits.softmax(-1).mean((0, 1))


def _places(share: float, tokens: int) -> int:
    return max(1, round_half_up(share * tokens))
