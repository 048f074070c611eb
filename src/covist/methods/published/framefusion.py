"""FrameFusion: tokens that hardly change from frame to frame merge, layer by layer; then the least attended ones go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import DecoderView, ImageContext
from covist.errors import CovistError
from covist.formulas.ops import ranking, unit_rows
from covist.grid import Grid
from covist.methods.inside import attention_to_image, last_prompt_row
from covist.methods.layout import cells_of, whole_grid
from covist.methods.published import register_published
from covist.methods.shared import cluster_means, largest
from covist.reduction import Reduction
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

LAST_MERGE = 0.1
"""If less than this share of the tokens has merged, merging is over."""
APART = 2.0
"""What is taken off the cosine of two places, so that it is below that of two frames."""


@dataclass
class Spent:
    """What an image has cost so far."""

    tokens: float  # before the last merge
    depth: int = 0  # of the last merge
    used: float = 0  # tokens of all layers before it

    def note(self, tokens: float, depth: int) -> None:
        """So many tokens were seen by the layers since, and are there before layer `depth`."""
        self.used += tokens * (depth - self.depth)
        self.tokens, self.depth = tokens, depth

    def share(self, budget: float, layers: int) -> float:
        """The tokens that each layer from here on may see, of `layers` layers with this budget each."""
        return (layers * budget - self.used) / (layers - self.depth)


@register_published
class FrameFusion(Method):
    name = "framefusion"
    writes_content = True
    options: ClassVar = {"similarity": "tokens of successive frames merge from this cosine on, between -1 and 1"}

    def __init__(self, similarity: float = 0.6, **options: Any):
        super().__init__(**options)
        if not (isinstance(similarity, int | float) and -1 <= similarity <= 1):
            raise CovistError(f"similarity={similarity!r}: choose a cosine between -1 and 1")
        self.similarity = similarity

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        """The budget in every layer: how the tokens are spread over the layers depends on the video."""
        if budget >= tokens:
            return fixed_schedule(layers, tokens, tokens)
        return Schedule(layers, tuple((layer, budget) for layer in range(layers)))

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def memory(self, image: ImageContext) -> Spent:
        return Spent(image.grid.size)

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        return fused(state, self.similarity, count, count, image.decoder.layers)

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        started, spent, layers = perf_counter(), view.memory, view.decoder.layers
        is_merged = 1 - state.count / spent.tokens < LAST_MERGE
        spent.note(state.count, view.depth)
        share = spent.share(count, layers)
        if is_merged:
            kept = largest(attention_to_image(view, last_prompt_row(view)), round(share))
            outcome = Reduction(state.restrict(kept.sort().values))
        else:
            outcome = fused(state, self.similarity, count, share, layers - view.depth)
        return replace(outcome, seconds={"selection": perf_counter() - started})


def fused(state: VisualState, bound: float, budget: float, share: float, layers: int) -> Reduction:
    """Merge every token whose cosine with the one before it reaches `bound`.

    If that would bring the image down to its budget, or if the next layer would see so many tokens that nothing is left
    for the other `layers` ahead, the most similar tokens merge until each layer sees its share.
    """
    order, similarity = along_places(state)
    merging = similarity >= bound
    remaining = state.count - int(merging.sum())
    if not budget < remaining <= layers * share - (layers - 1):
        nearest = ranking(similarity + 1 + APART)[: state.count - round(share)]
        merging = torch.zeros_like(merging).index_fill_(0, nearest, True)
    return merged(state, order, merging)


def along_places(state: VisualState) -> tuple[Tensor, Tensor]:
    """The tokens place by place, each through all frames [K], and the cosine of each with the one before it [K]."""
    place = places(state.grid, state.indices.device)[state.indices]
    order = place.argsort(stable=True)
    unit = unit_rows(state.features[order])
    similarity = (unit[1:] * unit[:-1]).sum(-1) - APART * (place[order].diff() != 0)
    return order, torch.cat([similarity.new_full((1,), -1 - APART), similarity])


def places(grid: Grid, device: torch.device) -> Tensor:
    """The place of each token in its frame [N]; all tokens of an image have their own."""
    cells = cells_of(grid, device)
    if grid.relation != "frames":
        return cells
    rows, columns = whole_grid(grid).views[0]
    return cells % (rows * columns)


def merged(state: VisualState, order: Tensor, merging: Tensor) -> Reduction:
    """Replace each run of `merging` tokens in an order [K], and the token before it, by their mean at its place."""
    run = torch.empty_like(order).index_copy_(0, order, (~merging).cumsum(0) - 1)  # of each token
    anchors = order[~merging]
    means, _ = cluster_means(state.features, run, len(anchors))
    weights = state.weights.new_zeros(len(anchors)).index_add_(0, run, state.weights)
    raster = anchors.argsort()
    kept = state.restrict(anchors[raster])
    return Reduction(
        kept.replace(features=means[raster].to(state.features.dtype), weights=weights[raster]),
        assignment=raster.argsort()[run],
    )
