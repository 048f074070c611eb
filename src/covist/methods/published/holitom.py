"""HoliTom: what stands still in windows of the video is merged before the decoder, and half of the rest inside it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from covist.contract.views import DecoderView, ImageContext
from covist.errors import CovistError
from covist.methods.density import density_peaks
from covist.methods.frames import Kept, by_frame, checked_similarity, ranges_between, same_place_cosines
from covist.methods.inside import ReduceInside, Stepped, attention_to_image, last_prompt_row
from covist.methods.published import register_published
from covist.methods.shared import cluster_means, cosine, largest, received_attention, rewritten, turns, without
from covist.reduction import Reduction
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

LONGEST_WINDOW, NEIGHBOURS, OWN_SHARE = 1024, 7, 0.6


@register_published
class HoliTom(Stepped, ReduceInside):
    name = "holitom"
    default_positions = "reindex"
    writes_content = True
    cuts = (0, 21)  # layer 18 of 28
    shape = (1.0, 0.5)
    reads_preceding_layer = True
    options: ClassVar = {
        "similarity": "a place stands still if its tokens in two frames have a cosine above this",
        "inside": "on: half of the tokens merge into the others inside the decoder; off: all happens before it",
    }

    def __init__(self, similarity: float = 0.8, inside: bool = True, **options: Any):
        super().__init__(**options)
        if not isinstance(inside, bool):
            raise CovistError(f"inside={inside!r}: choose True or False")
        self.similarity, self.inside = checked_similarity(similarity), inside

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        return super().schedule(layers, budget, tokens) if self.inside else fixed_schedule(layers, budget, tokens)

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        attention = received_attention(image.signals)
        tokens, salience = (by_frame(values.float(), image.grid) for values in (state.features, attention))
        still = same_place_cosines(tokens[:-1], tokens[1:]) > self.similarity
        windows, saved = best_windows(still)
        ratio = min(1.0, count / (state.count - saved))
        kept = Kept.by_segment(windows, partial(compress, ratio=ratio), tokens, salience, pad(still, (0, 0, 0, 1)))
        return kept.fitted(state, count, attention)

    def reduced(self, state: VisualState, view: DecoderView, count: int) -> VisualState:
        kept = largest(attention_to_image(view, last_prompt_row(view)), count).sort().values
        return folded(state, kept)


def folded(state: VisualState, kept: Tensor) -> VisualState:
    """The kept tokens [K], into which the others fold: each, in order, makes the most similar one its mean with it.

    So the last of several counts half, the one before it a quarter, and so on.
    """
    others = without(kept, state.count)
    features = state.features.float()
    nearest = cosine(features[others], features[kept]).argmax(-1)
    sizes = nearest.bincount(minlength=len(kept))
    later = sizes[nearest] - turns(torch.arange(len(others), device=others.device), nearest)  # itself included
    halved = features[others] * 0.5 ** later[:, None]
    content = (features[kept] * 0.5 ** sizes[:, None]).index_add(0, nearest, halved)
    weights = state.weights[kept].index_add(0, nearest, state.weights[others])
    return rewritten(state, kept, content, weights).restrict(kept)


def best_windows(still: Tensor) -> tuple[list[range], int]:
    """The windows of frames that save most tokens, and how many, from which places stand still [F - 1, n].

    A window saves each place that stands still throughout it in all its frames but one. Among equal savings, single
    frames and shorter windows are preferred.
    """
    frames = len(still) + 1
    runs = [still[first:].long().cumprod(0).sum(1).tolist() for first in range(frames - 1)]  # runs[u][v - u - 1]
    saved, starts = [0], []  # up to each frame; where the window that ends with it begins
    for last in range(frames):
        best, start = saved[last], last
        for first in range(last - 1, max(-1, last - LONGEST_WINDOW), -1):
            gain = saved[first] + (last - first) * runs[first][last - first - 1]
            best, start = (gain, first) if gain > best else (best, start)
        saved.append(best)
        starts.append(start)
    begins = [starts[-1]]
    while begins[-1] > 0:
        begins.append(starts[begins[-1] - 1])
    return ranges_between(begins[-2::-1], frames), saved[-1]


def compress(tokens: Tensor, attention: Tensor, still: Tensor, ratio: float) -> Kept:
    """What a window [W, n, d] keeps, about a `ratio` of its tokens, with places that stand still counted once.

    still: which places stand still between a frame and the next [W, n]
    """
    places, throughout = tokens.shape[1], still[:-1].all(0) & (len(tokens) > 1)
    moving, resting = (part.nonzero()[:, 0] for part in (~throughout, throughout))
    count = math.ceil(ratio * len(moving) - 1e-9)  # a product that should be whole may be just above it
    plain = [
        number * places + moving[largest(own[moving], count).sort().values] for number, own in enumerate(attention)
    ]
    centres, features, sizes = merged(tokens[:, resting].mean(0), round(ratio * len(resting)))
    return Kept(torch.cat(plain), resting[centres], features, len(tokens) * sizes)


def merged(points: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Dense points of [P, d] with a share of those nearest to each -> (indices [count], contents, how many points)."""
    if not count:
        return points.new_empty(0, dtype=torch.long), points[:0], points.new_empty(0)
    centres, cluster = density_peaks(points, count, min(NEIGHBOURS, count))
    means, sizes = cluster_means(points, cluster, count)
    own, sizes = points[centres], sizes[:, None]
    others = (sizes * means - own) / (sizes - 1).clamp(min=1)
    return centres, torch.where(sizes > 1, OWN_SHARE * own + (1 - OWN_SHARE) * others, own), sizes[:, 0]
