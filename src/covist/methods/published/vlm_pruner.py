"""VLM-Pruner: grows from a few pivots, near and dissimilar tokens first; dropped tokens are merged into kept ones."""

from __future__ import annotations

import math
from time import perf_counter

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.formulas.composition import EXACT_DISTANCES
from covist.methods.inside import DropInside, NominalCounts
from covist.methods.registry import register_method
from covist.methods.shared import cosine, farthest_points, first_best, largest, without
from covist.reduction import Reduction
from covist.state import VisualState

PIVOTS, CHANNELS, BATCH = 4, 256, 16
DISTANCE_WEIGHT = 0.5  # what a distance of a whole diagonal adds to a similarity of one
THRESHOLDS = tuple(0.8 + 0.1 * round_number for round_number in range(9))  # every token passes the last one
DIGITS = 5  # of a similarity, so that rounding does not decide between copies
OWN_SHARE = 0.3
SMALLEST = 1e-6


@register_method
class VLMPruner(NominalCounts, DropInside):
    name = "vlm-pruner"
    cuts = (2,)
    writes_content = True
    info = MethodInfo(
        paper=(
            "VLM-Pruner: Buffering for Spatial Sparsity in an Efficient VLM Centrifugal Token Pruning Paradigm "
            "(CVPR 2026)"
        ),
        acts="before layer 2/32",
        signals="keys of the preceding layer, decoder states, places in the image",
        budget="layer average K: all tokens, then a solved count; counts=nominal keeps K after the cut",
        criterion="diversity",
        needs=("decoder-keys", "decoder-states"),
        licence="Apache-2.0",
        published=(
            "Tokens are dropped before layer 2 of 32. There are 4 pivots: the image token with the largest L1 norm of "
            "its key in layer 1, then farthest points (Euclidean distance of keys). A token's similarity to those that "
            "stay is its largest cosine to them on the 256 channels of layer 1's output with the highest variance, "
            "times 1 + 0.5 d, with d the grid distance to the nearest of them divided by the diagonal. In rounds with "
            "the thresholds 0.8, 0.9 and so on, tokens are tried from the least similar on, in batches of 16 that are "
            "scored again; those below the threshold stay, and on overflow the best of the batch. A round ends if its "
            "first batch adds none. Every dropped token joins its most similar kept token (plain cosine), which "
            "becomes 0.3 of itself and 0.7 of the similarity-weighted mean of what joined it. Original positions. 192, "
            "128 and 64 tokens after the cut are a layer mean of 216, 156 and 96."
        ),
        ours=(
            "Based on a third-party copy of the code. The count after the cut is solved for the layer-mean budget "
            "unless counts=nominal. The original stops after a round that adds none and may return fewer tokens; here "
            "the next threshold follows until the count is reached. Every view has a diagonal of one, whatever its "
            "shape, and separate views or frames far apart in time are at most one diagonal away. The plain cosine "
            "uses the same 256 channels, and its weight is never below 1e-6. A token that nothing joins stays "
            "unchanged. Similarities are rounded to five digits, so that the first of several copies comes first. Keys "
            "are read after rotation."
        ),
        checked="reference: VLM-Pruner (pivots, kept tokens and content; published layer means)",
    )

    def observed_layer(self, depth: int) -> int:
        return depth - 1

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
