"""Tango: windows as in HoliTom; different, attended tokens stay, the others merge with those near in space and time."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.formulas.ops import unit_rows
from covist.methods.density import density_peaks
from covist.methods.frames import Kept, by_frame, checked_similarity, same_place_cosines
from covist.methods.layout import rows_and_columns
from covist.methods.published import register_published
from covist.methods.published.holitom import best_windows
from covist.methods.shared import cluster_means, largest, received_attention, turns, without
from covist.reduction import Reduction
from covist.state import VisualState

SALIENT_SHARE, CANDIDATES, NEIGHBOURS, OWN_SHARE = 0.6, 1.5, 7, 0.6
TIME_BASE, SPACE_BASE = 10000.0, 1000.0


@register_published
class Tango(Method):
    name = "tango"
    writes_content = True
    options: ClassVar = {"similarity": "a place stands still if its tokens in two frames have a cosine above this"}

    def __init__(self, similarity: float = 0.65, **options: Any):
        super().__init__(**options)
        self.similarity = checked_similarity(similarity)

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        attention, grid = received_attention(image.signals), image.grid
        places = rows_and_columns(grid).to(attention)
        tokens, salience, where = (by_frame(values, grid) for values in (state.features.float(), attention, places))
        still = pad(same_place_cosines(tokens[:-1], tokens[1:]) > self.similarity, (0, 0, 0, 1))
        windows, _ = best_windows(still[:-1])
        values = (tokens, turned(tokens, where), salience, still)
        kept = Kept.by_segment(windows, partial(compress, share=count / state.count), *values)
        return kept.fitted(state, count, attention)


def turned(tokens: Tensor, where: Tensor) -> Tensor:
    """Unit tokens [F, n, d] rotated by their frame, row and column [F, n, 2], in a third of their width each.

    Multiplied by the square root of d, because `density_peaks` divides distances by it.
    """
    side = 2 * (tokens.shape[-1] // 6)
    parts = unit_rows(tokens).split([tokens.shape[-1] - 2 * side, side, side], dim=-1)
    frame = torch.arange(len(tokens), device=tokens.device)[:, None].expand(where.shape[:2])
    bases = (TIME_BASE, SPACE_BASE, SPACE_BASE)
    rotated = [_rotated(*of) for of in zip(parts, (frame, *where.unbind(-1)), bases, strict=True)]
    return torch.cat(rotated, dim=-1) * tokens.shape[-1] ** 0.5


def _rotated(values: Tensor, position: Tensor, base: float) -> Tensor:
    """Rotate halves [..., d] against each other by position [...]; a last odd dimension stays."""
    half = values.shape[-1] // 2
    frequency = base ** (-torch.arange(half, device=values.device) / max(1, half))
    angle = position[..., None] * frequency
    first, second, odd = values.split([half, half, values.shape[-1] - 2 * half], dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, odd], dim=-1)


def compress(tokens: Tensor, points: Tensor, attention: Tensor, still: Tensor, share: float) -> Kept:
    """What a window [W, n, d] keeps: a `share` of its tokens, of which still places [W, n] have one each.

    points: the tokens as `turned` leaves them, between which distances are measured
    """
    (frames, places), throughout = attention.shape, still[:-1].all(0) & (len(tokens) > 1)
    moving, resting = (part.nonzero()[:, 0] for part in (~throughout, throughout))
    ratio = min(1.0, share * frames * places / (frames * len(moving) + len(resting)))
    changing = choose(tokens[:, moving], points[:, moving], attention[:, moving], ratio)
    means = tokens[:, resting].mean(0, keepdim=True)
    unchanged = choose(means, points[:1, resting], attention[:, resting].mean(0, keepdim=True), ratio)
    index = (places * torch.arange(frames, device=moving.device)[:, None] + moving).flatten()
    single = means[0, unchanged.plain]
    return Kept(
        index[changing.plain],
        torch.cat([index[changing.merged], resting[unchanged.plain], resting[unchanged.merged]]),
        torch.cat([changing.features, single, unchanged.features]),
        torch.cat([changing.weights, frames * torch.ones_like(single[:, 0]), frames * unchanged.weights]),
    )


def choose(tokens: Tensor, points: Tensor, attention: Tensor, ratio: float) -> Kept:
    """Keep a `ratio` of the tokens of each frame [G, m, d]: salient ones of every frame, and merged ones of all."""
    frames, places = attention.shape
    each = math.ceil(ratio * places - 1e-9)  # a product that should be whole may be just above it
    salient = int(SALIENT_SHARE * each)
    starts = places * torch.arange(frames, device=tokens.device)
    chosen = [diverse(own, score, salient) for own, score in zip(points, attention, strict=True)]
    plain = torch.cat([start + own for start, own in zip(starts, chosen, strict=True)])
    rest = without(plain, frames * places)
    merged = merge(tokens.flatten(0, 1)[rest], points.flatten(0, 1)[rest], frames * (each - salient))
    return Kept(plain, rest[merged[0]], *merged[1:])


def diverse(points: Tensor, attention: Tensor, count: int) -> Tensor:
    """The most attended one of each of `count` clusters of the most attended points [P, d]."""
    candidates = largest(attention, int(CANDIDATES * count))
    if not count:
        return candidates
    _, cluster = density_peaks(points[candidates], count, NEIGHBOURS, itself=False)
    return candidates[turns(torch.arange(len(candidates), device=points.device), cluster) == 0]


def merge(tokens: Tensor, points: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Merge tokens [P, d] by the distances of their points: (centres [count], contents [count, d], sizes [count])."""
    if not count:
        return torch.arange(0, device=tokens.device), tokens[:0], tokens[:0, 0]
    centres, cluster = density_peaks(points, count, NEIGHBOURS, itself=False)
    means, sizes = cluster_means(tokens, cluster, count)
    own = (1 / sizes).clamp(min=OWN_SHARE)[:, None]
    return centres, own * tokens[centres] + (1 - own) * means, sizes
