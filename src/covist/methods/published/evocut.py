"""EvoCut: tokens that change from layer to layer of the vision tower in an uncommon direction."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead
from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.formulas.ops import unit_rows
from covist.methods.layout import even_cells
from covist.methods.published import register_published
from covist.methods.shared import cluster_means, largest

STATES = EncoderRead("states", 11 / 24)
CLUSTERS, ITERATIONS, MEMORY = 8, 10, 0.95


@register_published
class EvoCut(Method):
    name = "evocut"
    default_positions = "reindex"
    encoder_requests = (STATES,)

    def select(self, image: ImageContext, count: int) -> Tensor:
        _, first = even_cells(image.grid, min(CLUSTERS, image.grid.size))
        return largest(evolution_scores(image.signals.read(STATES), first), count)


def evolution_scores(states: list[Tensor], first: Tensor) -> Tensor:
    """The final score of each token [N], from the states [N, v] before, between and after some layers.

    first: the tokens from which the clusters start [clusters].
    """
    score = torch.zeros(len(states[0]), dtype=torch.float32, device=states[0].device)
    for before, after in zip(states, states[1:], strict=False):
        directions = unit_rows(after.float() - before.float())
        novelty = 1 - (directions @ cluster_centres(directions, first).T).amax(-1)
        score = MEMORY * score + (1 - MEMORY) * novelty
    return score


def cluster_centres(directions: Tensor, first: Tensor) -> Tensor:
    """K-means of unit rows [N, v] by cosine -> centres of unit length [clusters, v]."""
    centres = directions[first.to(directions.device)]
    for _ in range(ITERATIONS):
        means, sizes = cluster_means(directions, (directions @ centres.T).argmax(-1), len(centres))
        centres = torch.where(sizes[:, None] > 0, unit_rows(means), centres)
    return centres
