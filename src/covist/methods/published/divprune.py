"""DivPrune: the tokens that lie farthest apart."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.shared import distances, expand, first_best


@register_published
class DivPrune(Method):
    name = "divprune"
    default_positions = "reindex"

    def select(self, image: ImageContext, count: int) -> Tensor:
        distance = distances(image.signals.embeddings)
        return expand(most_isolated(distance), distance, count)


def most_isolated(distance: Tensor) -> Tensor:
    """The token whose nearest other token is farthest, from distances [N, N] -> [1]."""
    to_others = distance.clone().fill_diagonal_(torch.inf)
    return first_best(to_others.amin(0))[None]
