"""The bound of Proposition 1 for an image in a prompt: how far compression can move the first layer's attention."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.engine.sequence.images import ImageInPrompt, Sample
from covist.engine.settings import Settings
from covist.formulas.bounds import attention_bound
from covist.formulas.ops import share_groups

LAYER = 0
"""The first layer, because its input is known with and without compression before anything has run."""


@torch.no_grad()
def bound_of(settings: Settings, sample: Sample, image: ImageInPrompt) -> float | None:
    """The bound for the last word of the question, the largest over all heads, as a share of the largest value.

    It holds for this image together with the text. None where the proposition does not apply: to tokens without a
    representative, a question before the image, or positions that are not kept.
    """
    outcome, asked = image.reductions[0][1], image.instruction.last
    if not image.reduced:
        return 0.0
    if outcome.assignment is None or asked < image.end or settings.method.positions != "keep":
        return None
    decoder, state = settings.decoder, outcome.state
    own, text = image.rows, _text_before(sample, asked)

    def read(features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens in every head, [heads, n, width] each."""
        hidden = decoder.first_input(features)
        cos, sin = decoder.rotary(hidden[None], positions[None])
        keys, values = decoder.keys(LAYER, hidden, (cos[0], sin[0])), decoder.values(LAYER, hidden)
        return share_groups(keys, decoder.heads), share_groups(values, decoder.heads)

    hidden, place = decoder.first_input(sample.embeddings[asked : asked + 1]), sample.positions[asked : asked + 1]
    cos, sin = decoder.rotary(hidden[None], place[None])
    query = decoder.queries(LAYER, hidden, (cos[0], sin[0])) * decoder.scale(LAYER)  # [heads, 1, width]
    keys, values = read(sample.embeddings[own], sample.positions[own])
    kept_keys, kept_values = read(state.features.to(sample.embeddings), state.positions)
    _, text_values = read(sample.embeddings[text], sample.positions[text])
    bias = _bias(settings.method.attention_rule(decoder), state.weights, place, state.positions)
    logits, kept_logits = ((query @ some.mT)[:, 0] for some in (keys, kept_keys))
    bounds = attention_bound(logits, values, kept_logits + bias, kept_values, outcome.assignment, text_values)
    return float(bounds.max())


def _text_before(sample: Sample, asked: int) -> Tensor:
    """Prompt rows of the text that the query sees, including the query itself."""
    visual = torch.cat([other.rows for other in sample.images])
    rows = torch.arange(asked + 1, device=visual.device)
    return rows[~torch.isin(rows, visual)]


def _bias(rule: AttentionRule | None, weights: Tensor, query: Tensor, keys: Tensor) -> Tensor:
    """Eq. 9's bias on the logits of the representatives [heads, K], for a query at a position [1] or [1, axes]."""
    if rule is None:
        return torch.zeros_like(weights)[None]
    added = weights.log() if rule.weights else torch.zeros_like(weights)
    distance = rule.distance(LAYER)
    if distance is not None:
        added = added + distance.log_factor(query, keys)[0]
    return rule.scale[LAYER].to(added)[:, None] * added
