"""Downsampling: as many tokens as a smaller image would have.

A CLIP tower has a fixed grid of position embeddings, and a method acts after the image is encoded, so the image itself
cannot be resized. The closest fair equivalent is area pooling: the encoder features (before the projector) are averaged
over K near-square cells, projected, and placed at the cell's middle token. This loses less than a smaller image would,
because the encoder saw every detail.
"""

from __future__ import annotations

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.methods.layout import NO_CELL, even_cells
from covist.methods.registry import register_method
from covist.methods.shared import cluster_means
from covist.reduction import Reduction
from covist.state import VisualState


@register_method
class Downsample(Method):
    name = "downsample"
    default_positions = "reindex"
    writes_content = True
    info = MethodInfo(
        paper="none",
        acts="before the decoder",
        signals="encoder features, projector",
        budget="exactly K in every layer",
        criterion="nothing",
        needs=("encoder-features",),
    )

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        hidden = image.signals.hidden
        cell, middle = (part.to(hidden.device) for part in even_cells(image.grid, count))
        pooled = cell != NO_CELL
        means, sizes = cluster_means(hidden[pooled], cell[pooled], count)
        features = image.signals.project(means.to(hidden.dtype))
        return Reduction(
            state.restrict(middle).replace(features=features.to(state.features.dtype), weights=sizes),
            assignment=cell.clamp(min=0),
        )
