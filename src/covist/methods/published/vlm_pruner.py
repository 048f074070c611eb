"""VLM-Pruner: grows from a few pivots, near and dissimilar tokens first; dropped tokens are merged into kept ones."""

from __future__ import annotations

import math
from time import perf_counter

import torch
from torch import Tensor

from covist.contract.views import DecoderView
from covist.formulas.composition import EXACT_DISTANCES
from covist.methods.inside import DropInside, NominalCounts
from covist.methods.published import register_published
from covist.methods.shared import cosine, farthest_points, first_best, largest, without
from covist.reduction import Reduction
from covist.state import VisualState

PIVOTS, CHANNELS, BATCH = 4, 256, 16
DISTANCE_WEIGHT = 0.5  # what a distance of a whole diagonal adds to a similarity of one
THRESHOLDS = tuple(0.8 + 0.1 * round_number for round_number in range(9))  # every token passes the last one
DIGITS = 5  # of a similarity, so that rounding does not decide between copies
OWN_SHARE = 0.3
SMALLEST = 1e-6


@register_published
class VLMPruner(NominalCounts, DropInside):
    name = "vlm-pruner"
    cuts = (2,)
    reads_preceding_layer = True
    writes_content = True

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        started = perf_counter()
        kept = self.choose(state, view, count)
        selected = perf_counter()
        reduced = absorbed(state, kept, liveliest_channels(view.hidden[view.visual]))
        seconds = {"selection": selected - started, "composition": perf_counter() - selected}
        return Reduction(reduced, seconds=seconds)

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        cosines = cosine(liveliest_channels(view.hidden[view.visual]))
        return grown(pivots(view, min(PIVOTS, count)), cosines, diagonals_apart(state.places), count)


def pivots(view: DecoderView, count: int) -> Tensor:
    """The representative with the longest key and those whose keys are farthest from it and each other [count]."""
    keys = view.keys(view.visual).transpose(0, 1).flatten(1)  # [K, all heads side by side]
    return farthest_points(keys, first_best(keys.abs().sum(-1))[None], count)


def liveliest_channels(states: Tensor) -> Tensor:
    """The channels of [K, d] with the highest variance over the tokens, [K, up to 256]."""
    states = states.float()
    return states[:, largest(states.var(0, correction=0), CHANNELS).sort().values]


def diagonals_apart(places: Tensor) -> Tensor:
    """Distances between places [K, 2 or 3] as a share of a view's diagonal, at most one [K, K]."""
    return (torch.cdist(places, places, compute_mode=EXACT_DISTANCES) / math.sqrt(2)).clamp(max=1)


def grown(pivots: Tensor, cosines: Tensor, apart: Tensor, count: int) -> Tensor:
    """Grow the pivots to `count` tokens by cosines and distances of all pairs [K, K] -> increasing."""
    chosen = torch.zeros_like(cosines[0], dtype=torch.bool).index_fill_(0, pivots, True)
    closest, nearest = cosines[pivots].amax(0), apart[pivots].amin(0)
    for threshold in THRESHOLDS:
        if int(chosen.sum()) == count:
            break
        for number, batch in enumerate(similarities(closest, nearest, chosen).argsort(stable=True).split(BATCH)):
            scores = similarities(closest, nearest, chosen)[batch]
            is_best = scores.argsort(stable=True).argsort() < count - chosen.sum()
            accepted = (scores < threshold) & is_best
            if number == 0 and not bool(accepted.any()):
                break
            chosen[batch] |= accepted
            others = ~accepted[:, None]
            closest = torch.maximum(closest, cosines[batch].masked_fill(others, -torch.inf).amax(0))
            nearest = torch.minimum(nearest, apart[batch].masked_fill(others, torch.inf).amin(0))
    return chosen.nonzero()[:, 0]


def similarities(closest: Tensor, nearest: Tensor, chosen: Tensor) -> Tensor:
    """Similarity of tokens to those chosen, from the largest cosine and smallest distance [K]; inf for chosen ones."""
    similarity = closest * (1 + DISTANCE_WEIGHT * nearest)
    return similarity.round(decimals=DIGITS).masked_fill(chosen, torch.inf)


def absorbed(state: VisualState, kept: Tensor, channels: Tensor) -> VisualState:
    """The tokens `kept`, each mixed with the others whose channels [K, c] are most similar to its own."""
    dropped = without(kept, state.count)
    share, joined = cosine(channels[dropped], channels[kept]).max(-1)
    share = share.clamp(min=SMALLEST)
    reduced = state.restrict(kept)
    features = reduced.features.float()
    sums = torch.zeros_like(features).index_add_(0, joined, share[:, None] * state.features[dropped].float())
    total = torch.zeros_like(reduced.weights).index_add_(0, joined, share)[:, None]
    mixed = OWN_SHARE * features + (1 - OWN_SHARE) * sums / total.clamp(min=SMALLEST)
    return reduced.replace(
        features=torch.where(total > 0, mixed, features).to(state.features.dtype),
        weights=reduced.weights.index_add(0, joined, state.weights[dropped]),
    )
