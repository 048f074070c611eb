"""VScan: local and global scans and merging before the decoder, and one drop in its middle."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import round_half_up
from covist.grid import Grid
from covist.methods.inside import PUBLISHED_LAYERS, ScoreInside, attention_to_image, last_prompt_row
from covist.methods.layout import windows
from covist.methods.published import register_published
from covist.methods.shared import cluster_means, cosine, joined, largest, layer_attention, received_attention, turns
from covist.reduction import Reduction
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

WINDOWS = 4  # per side
FIRST_STAGE = 1.5


@register_published
class VScan(ScoreInside):
    name = "vscan"
    default_positions = "reindex"
    encoder_requests = (5 / 24,)
    cuts = (16,)
    writes_content = True

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        cut = round_half_up(self.cuts[0] * layers / PUBLISHED_LAYERS)
        if budget >= tokens or cut == layers:
            return fixed_schedule(layers, budget, tokens)
        affordable = (layers * budget - (layers - cut)) // cut  # one token must be left for every later layer
        first = min(round_half_up(FIRST_STAGE * budget), tokens, affordable)
        last = round_half_up((layers * budget - cut * first) / (layers - cut))
        return Schedule(layers, ((0, first), (cut, max(1, last))))

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        shallow = layer_attention(signals, signals.layers[min(signals.layers)]) if signals.layers else None
        deep = received_attention(signals)
        local = local_scan(deep if shallow is None else shallow, image.grid, count // 2)
        kept = torch.cat([local, largest(deep.index_fill(0, local, -torch.inf), count - len(local))]).sort().values
        cluster = joined(cosine(state.features, state.features[kept]), kept)
        means, sizes = cluster_means(state.features, cluster, count)
        merged = state.restrict(kept).replace(features=means.to(state.features.dtype), weights=sizes)
        return Reduction(merged, assignment=cluster)

    def score(self, view: DecoderView) -> Tensor:
        return attention_to_image(view, last_prompt_row(view))


def local_scan(attention: Tensor, grid: Grid, count: int) -> Tensor:
    """Tokens with the most attention [N] of each window; windows take turns, the strongest first -> [count]."""
    window = windows(grid, WINDOWS, attention.device)
    order = largest(attention, len(attention))
    return order[turns(order, window)[order].argsort(stable=True)][:count]
