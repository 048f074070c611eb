"""What methods for videos share: tokens by frame and place, segments of frames, and counts that meet a budget exactly.

A method sees one segment of a long video at a time (`families/video.py`), so the first frame of a segment is a first
frame to it. An image is a video of one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from covist.errors import CovistError
from covist.formulas.ops import unit_rows
from covist.grid import Grid
from covist.methods.shared import TIE, largest, rewritten
from covist.reduction import Reduction
from covist.state import VisualState


def by_frame(values: Tensor, grid: Grid) -> Tensor:
    """Values of the tokens [N, ...] by frame and place [F, n, ...]; an image, whatever its views, is one frame.

    So is a video whose frames have different places (`Grid.matching_frames`).
    """
    return values.unflatten(0, (grid.matching_frames, -1))


def same_place_cosines(earlier: Tensor, later: Tensor) -> Tensor:
    """Cosines of tokens [..., n, d] with those at the same places of other frames [..., n, d] -> [..., n].

    They are rounded, so that rounding errors do not rank what has not moved.
    """
    return ((unit_rows(earlier) * unit_rows(later)).sum(-1) / TIE).round() * TIE


def checked_similarity(similarity: float) -> float:
    """Refuse a threshold that no cosine can reach."""
    if isinstance(similarity, bool) or not isinstance(similarity, int | float) or not -1 <= similarity <= 1:
        raise CovistError(f"similarity={similarity!r}: choose a cosine from -1 to 1")
    return similarity


def similar_segments(means: Tensor, threshold: float, least: int) -> list[range]:
    """Segments of similar frames, from the mean token of every frame [F, d].

    A segment ends where successive means have a cosine below the threshold. If there are fewer than `least` segments,
    it also ends at the next lowest cosines.
    """
    cosines = same_place_cosines(means[:-1], means[1:])
    ends = max(int((cosines < threshold).sum()), min(least - 1, len(cosines)))
    return ranges_between((largest(-cosines, ends) + 1).sort().values.tolist(), len(means))


def ranges_between(starts: Sequence[int], frames: int) -> list[range]:
    """The ranges into which further `starts`, increasing, divide the frames.

    >>> ranges_between([2, 3], frames=6)
    [range(0, 2), range(2, 3), range(3, 6)]
    """
    return [range(start, end) for start, end in pairwise([0, *starts, frames])]


def largest_by_frame(scores: Tensor, counts: Sequence[int]) -> Tensor:
    """The tokens with the largest scores [F, n] in each frame, as many as its count, increasing."""
    places = scores.shape[1]
    chosen = [
        number * places + largest(own, count) for number, (own, count) in enumerate(zip(scores, counts, strict=True))
    ]
    return torch.cat(chosen).sort().values


def fit_counts(counts: Sequence[int], wanted: Sequence[float], total: int, most: int) -> list[int]:
    """Change the counts of frames until their sum is `total`, one by one where they differ most from what was wanted.

    None exceeds `most`, and none falls to zero if there is a token for every frame.

    >>> fit_counts([3, 3, 1], [2.5, 3.4, 1.1], total=6, most=9)
    [2, 3, 1]
    """
    counts, least = list(counts), int(total >= len(counts))
    while missing := total - sum(counts):
        step = 1 if missing > 0 else -1
        free = [number for number, count in enumerate(counts) if (count < most if step > 0 else count > least)]
        counts[max(free, key=lambda number: step * (wanted[number] - counts[number]))] += step
    return counts


def fit_tokens(kept: Tensor, count: int, saliency: Tensor, merged: Tensor | None = None) -> Tensor:
    """Exactly `count` tokens, increasing, if a method has `kept` more or fewer of them.

    The most salient [N] of the others fill up. Of too many, the least salient leave, those that stand for others
    (`merged`, some of the kept ones) last.
    """
    tier = torch.zeros_like(saliency, dtype=torch.long).index_fill_(0, kept, 1)
    if merged is not None:
        tier[merged] = 2
    order = largest(saliency, len(saliency))
    return order[tier[order].argsort(descending=True, stable=True)][:count].sort().values


@dataclass(frozen=True)
class Kept:
    """Tokens that a method keeps as they are, and tokens that stand for others; together about as many as it may."""

    plain: Tensor  # [P] indices, in a segment from 0
    merged: Tensor  # [M] indices of the tokens whose places the others take
    features: Tensor  # [M, d]
    weights: Tensor  # [M] how many tokens each stands for

    @classmethod
    def by_segment(cls, segments: Sequence[range], compress: Callable[..., Kept], *values: Tensor) -> Kept:
        """What `compress` keeps of each segment, given the segment's part of all values [F, n, ...]."""
        places = values[0].shape[1]
        parts = zip(*(own.split([*map(len, segments)]) for own in values), strict=True)
        kept = []
        for segment, part in zip(segments, parts, strict=True):
            own, first = compress(*part), segment.start * places
            kept.append((first + own.plain, first + own.merged, own.features, own.weights))
        return cls(*(torch.cat(fields) for fields in zip(*kept, strict=True)))

    def fitted(self, state: VisualState, count: int, saliency: Tensor) -> Reduction:
        """The state of exactly `count` tokens, as `fit_tokens` chooses them by saliency [N]."""
        chosen = fit_tokens(torch.cat([self.plain, self.merged]), count, saliency, self.merged)
        return Reduction(self.written(state).restrict(chosen))

    def written(self, state: VisualState) -> VisualState:
        """The state with the contents and weights of the merged tokens, none of them removed."""
        return rewritten(state, self.merged, self.features, self.weights.to(state.weights).clamp(min=1))
