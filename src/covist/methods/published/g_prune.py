"""G-Prune: the tokens in which a walk over the graph of similar tokens gathers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.formulas.ops import ranking
from covist.methods.published import register_published
from covist.methods.shared import group_shares

SIMILAR, TEMPERATURE, STEPS = 0.5, 0.03, 5


@register_published
class GPrune(Method):
    name = "g-prune"

    def select(self, image: ImageContext, count: int) -> Tensor:
        tokens = image.signals.embeddings
        shares = group_shares(image.grid.view_numbers(tokens.device), count)
        return torch.cat([members[ranking(gathered(tokens[members]))[:share]] for members, share in shares])


def gathered(features: Tensor) -> Tensor:
    """What gathers in each token [N, d] after five steps of the walk, per token that it resembles [N]."""
    features = features.double()  # the temperature magnifies rounding
    unit = normalize(features, dim=-1)
    similarity = unit @ unit.T
    linked = similarity >= SIMILAR
    linked |= ~linked.any(-1, keepdim=True)  # a token of zeros resembles none; it leads everywhere
    steps = (similarity / TEMPERATURE).masked_fill(~linked, -torch.inf).softmax(-1)
    mass = features.norm(dim=-1)
    for _ in range(STEPS):
        mass = mass @ steps
    return mass / linked.sum(-1)
