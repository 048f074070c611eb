"""EvoCut: tokens that change from layer to layer of the vision tower in an uncommon direction."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead
from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.formulas.ops import unit_rows
from covist.methods.layout import even_cells
from covist.methods.registry import register_method
from covist.methods.shared import cluster_means, largest

STATES = EncoderRead("states", 11 / 24)
CLUSTERS, ITERATIONS, MEMORY = 8, 10, 0.95


@register_method
class EvoCut(Method):
    name = "evocut"
    default_positions = "reindex"
    encoder_requests = (STATES,)
    info = MethodInfo(
        paper=(
            "EvoCut: Multi-Layer Evolution-Aware Visual Token Compression for Efficient Large Vision-Language Models "
            "(arXiv 2606.01756)"
        ),
        acts="before the decoder",
        signals="hidden states of successive encoder layers",
        budget="exactly K in every layer",
        criterion="change",
        needs=("encoder-layers",),
        licence="no code released",
        published=(
            "From encoder layer 12 of 24 (Qwen: 16 of 32) on, the directions in which a layer moves the tokens are "
            "clustered by K-means (8 clusters, centres of unit length). A token's novelty is 1 minus its largest "
            "cosine to a centre; its score is 0.95 of the score so far plus 0.05 of the novelty. The tokens with the "
            "largest final scores stay."
        ),
        ours=(
            "Choices that the paper leaves open: K-means starts from the middle tokens of 8 even cells of the image, "
            "which works as well as random tokens and is always the same (starting from tokens that are far apart "
            "would make rare directions centres, and so not novel), and runs 10 iterations; an empty cluster keeps its "
            "centre. Scores start at zero. The last layer is the one that feeds the projector, because the decoder "
            "does not see later ones. The first layer scales with the tower's depth. The state of a token made of "
            "several patches is their states side by side. Tiles form one pool."
        ),
        checked="reference: tests/reference/encoder.py (clusters, novelty, scores, kept tokens)",
    )

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
