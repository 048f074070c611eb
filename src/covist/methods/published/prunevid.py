"""PruneVid: in windows of similar frames, what does not change is averaged; sets of tokens are clustered, then cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor

from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import unit_rows
from covist.grid import Grid
from covist.methods.density import density_peaks, merge_by_density
from covist.methods.frames import Kept, by_frame, ranges_between
from covist.methods.inside import ChooseInside, Stepped, text_rows
from covist.methods.layout import allot
from covist.methods.published import register_published
from covist.methods.shared import largest, turns
from covist.reduction import Reduction
from covist.schedule import Schedule
from covist.state import VisualState

Label = TypeVar("Label", int, int | None)
FRAMES_PER_WINDOW, NEIGHBOURS, SIMILARITY, SMALL_SET = 4, 7, 0.8, 14


@register_published
class PruneVid(Stepped, ChooseInside):
    name = "prunevid"
    default_positions = "reindex"
    writes_content = True
    cuts = (0, 11)
    shape = (1.0, 0.4)
    reads_preceding_layer = True

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        made = super().schedule(layers, budget, tokens)
        return made if len(made.stages) == 1 else replace(made, cache_cut_from=0, counts_prefill=True)

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        sets = Sets.of(state.features, image.grid).limited(state.count - count)
        kept = sets.merged(places_of(sets.sizes(), count))
        return Reduction(kept.written(state).restrict(kept.merged.sort().values))

    def memory(self, image: ImageContext) -> Tensor:
        """The set of each token [N]."""
        return Sets.of(image.signals.embeddings, image.grid).numbers().flatten()

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        attention = view.attention(text_rows(view)).amax((0, 1))[view.visual]
        order, group = largest(attention, state.count), view.memory[state.indices]
        places = torch.tensor(allot(count, group.bincount().tolist()), device=group.device)
        return (turns(order, group) < places[group]).nonzero()[:, 0]


@dataclass(frozen=True)
class Sets:
    """The tokens of a video in sets: those that change, frame by frame, and those that do not, window by window."""

    tokens: Tensor  # [F, n, d]
    windows: list[range]
    likeness: Tensor  # [windows, n] mean cosine of a place in all pairs of frames
    still: Tensor  # [windows, n] places that do not change

    @classmethod
    def of(cls, features: Tensor, grid: Grid, similarity: float = SIMILARITY) -> Sets:
        tokens = by_frame(features.float(), grid)
        windows = similar_windows(tokens.mean(1))
        likeness = torch.stack([mean_cosine(tokens[own.start : own.stop]) for own in windows])
        return cls(tokens, windows, likeness, likeness > similarity)

    def limited(self, most: int) -> Sets:
        """Let places count as changing, the least similar first, until the others save no more than `most` tokens."""
        saves = self.still * torch.tensor([[len(window) - 1] for window in self.windows], device=self.still.device)
        order = largest(self.likeness.flatten(), saves.numel())
        saved = torch.empty_like(order).index_copy_(0, order, saves.flatten()[order].cumsum(0))
        return replace(self, still=self.still & (saved <= most).view_as(self.still))

    def numbers(self) -> Tensor:
        """The set of each token [F, n]: the number of its frame, or after these that of its window."""
        frames = len(self.tokens)
        own = torch.arange(frames, device=self.still.device)[:, None]
        window = torch.tensor([number for number, held in enumerate(self.windows) for _ in held], device=own.device)
        return torch.where(self.still[window], frames + window[:, None], own)

    def sizes(self) -> list[int]:
        """Tokens of each set, with an averaged place counted once."""
        still = self.still.sum(1).tolist()
        changing = [self.still.shape[1] - own for window, own in zip(self.windows, still, strict=True) for _ in window]
        return [*changing, *still]

    def merged(self, counts: Sequence[int]) -> Kept:
        """Every set merged into its count of tokens."""
        kept = [self._of_window(number, counts) for number in range(len(self.windows))]
        indices, features, sizes = (torch.cat(values) for values in zip(*sum(kept, []), strict=True))
        return Kept(indices[:0], indices, features, sizes)

    def _of_window(self, number: int, counts: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """What the sets of a window become, that of its still places first: (indices, contents, sizes) of each."""
        window, (frames, places) = self.windows[number], self.tokens.shape[:2]
        resting, moving = (part.nonzero()[:, 0] for part in (self.still[number], ~self.still[number]))
        mean = self.tokens[window.start : window.stop, resting].mean(0)
        sets = [(window.start, resting, mean, len(window), counts[frames + number])]
        sets += [(frame, moving, self.tokens[frame, moving], 1, counts[frame]) for frame in window]
        made = []
        for frame, members, points, size, count in sets:
            centres, means, sizes = merge_by_density(points, torch.full_like(points[:, 0], size), count, NEIGHBOURS)
            made.append((frame * places + members[centres], means, sizes))
        return made


def places_of(sizes: Sequence[int], count: int) -> list[int]:
    """Divide `count` among sets in proportion to their sizes; small ones stay whole if others get one token each."""
    small, large = zip(*((size, 0) if size <= SMALL_SET else (0, size) for size in sizes), strict=True)
    left = count - sum(small)
    if left <= 0 or left < sum(map(bool, large)):
        return allot(count, list(sizes))
    return [whole or part for whole, part in zip(small, allot(left, list(large)), strict=True)]


def mean_cosine(tokens: Tensor) -> Tensor:
    """Mean cosine of each place over all pairs of different frames [W, n, d] -> [n]; -1 for a single frame."""
    frames = len(tokens)
    if frames == 1:
        return tokens.new_full(tokens.shape[1:2], -1)
    return (unit_rows(tokens).sum(0).square().sum(-1) - frames) / (frames * (frames - 1))


def similar_windows(means: Tensor) -> list[range]:
    """Windows of frames whose mean tokens [F, d] are in one cluster, a quarter as many as frames or fewer."""
    _, label = density_peaks(means, max(1, len(means) // FRAMES_PER_WINDOW), NEIGHBOURS)
    labels = refined(label.tolist())
    return ranges_between([f for f in range(1, len(labels)) if labels[f] != labels[f - 1]], len(labels))


def refined(labels: Sequence[int]) -> list[int]:
    """Only the longest runs of a label stay, if longer than one; any other stretch joins the longer run beside it."""
    longest = {label: max(length for other, length in _runs(labels) if other == label) for label in labels}
    stays = [(label, length) if 1 < length == longest[label] else (None, length) for label, length in _runs(labels)]
    filled = [label for label, length in stays for _ in range(length)]
    while None in filled:
        start = filled.index(None)
        end = next((place for place in range(start, len(filled)) if filled[place] is not None), len(filled))
        beside = [*_runs(filled[:start])[-1:], *_runs(filled[end:])[:1]]
        label = max(beside, key=lambda run: run[1])[0] if beside else 0
        filled[start:end] = [label] * (end - start)
    return [label for label in filled if label is not None]


def _runs(labels: Sequence[Label]) -> list[tuple[Label, int]]:
    """Labels of successive frames, each with how often it follows itself."""
    return [(label, len(list(own))) for label, own in groupby(labels)]
