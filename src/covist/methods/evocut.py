"""EvoCut: tokens whose change from layer to layer of the vision tower is unlike any common one."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead
from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.formulas.ops import unit_rows
from covist.methods._layout import even_cells
from covist.methods._shared import cluster_means, largest
from covist.methods.registry import register_method

STATES = EncoderRead("states", 11 / 24)
CLUSTERS, ITERATIONS, MEMORY = 8, 10, 0.95


@register_method
class EvoCut(Method):
    name = "evocut"
    default_positions = "reindex"
    encoder_layers = (STATES,)
    info = MethodInfo(
        paper=(
            "EvoCut: Multi-Layer Evolution-Aware Visual Token Compression for Efficient Large Vision-Language Models "
            "(arXiv 2606.01756)"
        ),
        acts="before the decoder",
        signals="hidden states of successive encoder layers",
        budget="exactly K in every layer",
        goes_by="change",
        needs=("encoder-layers",),
        licence="no code released",
        published=(
            "From encoder layer 12 of 24 (Qwen: 16 of 32) on, the direction in which each layer moves each token is "
            "clustered by K-means (8 clusters, centres of unit length); a token's novelty is 1 minus its largest "
            "cosine to a centre, and its score 0.95 of the score so far plus 0.05 of the novelty. The tokens of the "
            "largest final scores stay."
        ),
        ours=(
            "Left open by the paper: K-means starts from the middle tokens of 8 even cells of the image, which is as "
            "good as random ones and always the same (tokens that lie far apart would make rare directions centres, "
            "and so not novel), and runs 10 iterations; an empty cluster keeps its centre. Scores start at zero. The "
            "last layer is the one that feeds the projector: the decoder sees nothing of later ones. The first layer "
            "scales with the tower's depth. A token made of several patches moves as they do side by side. Tiles form "
            "one pool."
        ),
        checked="reference: tests/reference/encoder.py (clusters, novelty, scores, kept tokens)",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        _, first = even_cells(image.grid, min(CLUSTERS, image.grid.size))
        return largest(evolution_scores(image.signals.read(STATES), first), count)


def evolution_scores(states: list[Tensor], first: Tensor) -> Tensor:
    """The running score of each token [N], from the states [N, v] before, between and after some layers.

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
