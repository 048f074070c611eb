"""Methods that drop tokens inside the decoder: their schedules and their common reduction."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Counts, Method
from covist.contract.reading import readable_depth
from covist.contract.views import DecoderView
from covist.errors import CovistError
from covist.formulas.ops import round_half_up
from covist.methods.shared import largest
from covist.reduction import Reduction
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

PUBLISHED_LAYERS = 32
"""Depth of the decoder to which published layer indices refer; they are scaled for other depths."""
PUBLISHED_TOKENS = 576
"""Tokens of the images to which published counts refer."""
ROWS_AT_ONCE = 256
"""Image tokens that serve as queries at a time, which bounds the memory for their attention."""


def cut_depths(layers: int, budget: int, tokens: int, cuts: Sequence[int], share: float) -> list[int]:
    """The layer of each reduction in a decoder of `layers` layers, given its layer in a decoder of 32.

    The layers before the first cut see all tokens. If these alone would take more than `share` of the budget, the first
    cut moves forward and the others keep their proportions after it.
    """
    affordable = math.floor(share * layers * budget / tokens)
    first = max(1, min(round_half_up(cuts[0] * layers / PUBLISHED_LAYERS), affordable))
    after = [(cut - cuts[0]) / (PUBLISHED_LAYERS - cuts[0]) for cut in cuts]
    return [first + round_half_up((layers - first) * part) for part in after]


def inside_schedule(
    layers: int, budget: int, tokens: int, cuts: Sequence[int], shape: Sequence[float], share: float
) -> Schedule:
    """All tokens up to the first cut, then counts in the proportions of `shape` whose layer mean is the budget.

    If the full-length layers exceed the budget even with the earliest cut, one token is left after it, and the mean is
    above the budget, as the report shows.
    """
    depths = cut_depths(layers, budget, tokens, cuts, share)
    if budget >= tokens or depths[0] >= layers:
        return fixed_schedule(layers, tokens, tokens)
    return in_proportion(layers, budget, tokens, depths, shape)


def stepped_schedule(layers: int, budget: int, tokens: int, cuts: Sequence[int], shape: Sequence[float]) -> Schedule:
    """Counts in the proportions of `shape` from the `cuts` on, the first of which is before the decoder; their layer
    mean is the budget."""
    if budget >= tokens:
        return fixed_schedule(layers, tokens, tokens)
    return in_proportion(layers, budget, tokens, scaled_depths(layers, cuts), shape)


def in_proportion(layers: int, budget: int, tokens: int, depths: Sequence[int], shape: Sequence[float]) -> Schedule:
    """Counts in the proportions of `shape` from `depths` on, solved for a layer mean of the budget."""

    def schedule(scale: float) -> Schedule:
        return staged(layers, tokens, depths, [round_half_up(scale * part) for part in shape])

    return solved(schedule, tokens / min(shape), budget)


def solved(schedule: Callable[[float], Schedule], most: float, budget: int) -> Schedule:
    """The schedule whose layer mean is nearest to the budget, among those that grow with a number from 0 to `most`."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if schedule(middle).mean <= budget else (low, middle)
    return min(schedule(low), schedule(high), key=lambda candidate: abs(candidate.mean - budget))


def published_schedule(layers: int, tokens: int, cuts: Sequence[int], counts: Sequence[int]) -> Schedule:
    """The published `counts` from the published `cuts` on, in a decoder of `layers` layers; all tokens before them."""
    return staged(layers, tokens, scaled_depths(layers, cuts), counts)


def scaled_depths(layers: int, cuts: Sequence[int]) -> list[int]:
    """Cuts scaled to `layers` layers: 0 stays before the decoder, any other cut has at least one layer before it."""
    return [max(round_half_up(cut * layers / PUBLISHED_LAYERS), min(cut, 1)) for cut in cuts]


def staged(layers: int, tokens: int, depths: Sequence[int], counts: Sequence[int]) -> Schedule:
    """`counts` from `depths` on and all tokens before them; counts never rise and never reach zero.

    In a decoder so shallow that two cuts fall on one layer, the later one counts.
    """
    stages = {0: tokens}
    for depth, count in zip(depths, counts, strict=True):
        if depth < layers:
            stages[depth] = min(max(count, 1), *stages.values())
    return Schedule(layers, tuple(stages.items()))


def at_first_cut(method: Proportioned, view: DecoderView) -> bool:
    """Whether this depth is that of the method's first cut, which a small budget may have moved forward."""
    first = scaled_depths(view.decoder.layers, method.cuts)[0]
    return view.depth <= readable_depth(method, view.decoder, first)


class NominalCounts(Method):
    """Lets a method run at its published counts, whose layer mean is not the budget that they are named after.

    List it before the other base classes of a method. `cuts` are layers in a decoder of 32; 0 is before the first.
    """

    options: ClassVar = {
        "counts": "average: counts are solved so that their layer mean is the budget; "
        "nominal: the published layers and counts for the budget, whose layer mean differs from it"
    }
    cuts: ClassVar[tuple[int, ...]]

    def __init__(self, counts: Counts = "average", **options: Any):
        super().__init__(**options)
        if counts not in ("average", "nominal"):
            raise CovistError(f"counts={counts!r}: choose 'average' or 'nominal'")
        self.counts = counts

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        if self.counts == "average" or budget >= tokens:
            return self.average_schedule(layers, budget, tokens)
        return published_schedule(layers, tokens, self.cuts, self.nominal_counts(budget))

    def average_schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        """The schedule whose layer mean is the budget."""
        return super().schedule(layers, budget, tokens)

    def nominal_counts(self, budget: int) -> Sequence[int]:
        """The published count after each cut."""
        return [budget] * len(self.cuts)


class ReduceInside(Method):
    """Replaces the state at each cut inside the decoder by the one that `reduced` returns."""

    reads_preceding_layer: ClassVar[bool] = False
    """Whether what is read of the decoder is that of the layer before a cut, which has run, not of the one after it."""

    def observed_layer(self, depth: int) -> int:
        return depth - self.reads_preceding_layer

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        started = perf_counter()
        reduced = self.reduced(state, view, count)
        return Reduction(reduced, seconds={"selection": perf_counter() - started})

    @abstractmethod
    def reduced(self, state: VisualState, view: DecoderView, count: int) -> VisualState:
        """The state of `count` tokens."""


class ChooseInside(ReduceInside):
    """Keeps only the tokens that `choose` returns at each cut inside the decoder."""

    def reduced(self, state: VisualState, view: DecoderView, count: int) -> VisualState:
        return state.restrict(self.choose(state, view, count).sort().values)

    @abstractmethod
    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        """Indices [count] of the representatives to keep."""


class Proportioned(Method):
    """Cuts at published layers, with counts in published proportions."""

    cuts: ClassVar[tuple[int, ...]]
    """Layers before which tokens are dropped, in a decoder of 32 layers; 0 is before the first."""
    shape: ClassVar[tuple[float, ...]] = (1.0,)
    """Proportions of the counts after the cuts."""
    presets: ClassVar[dict[int, tuple[float, ...]]] = {}
    """Budget for 576 tokens -> published counts after the cuts. If there are any, those of the nearest budget give the
    proportions."""

    def proportions(self, budget: int, tokens: int) -> tuple[float, ...]:
        """Proportions of the counts after the cuts, for a budget."""
        if not self.presets:
            return self.shape
        return self.presets[min(self.presets, key=lambda preset: abs(preset / PUBLISHED_TOKENS - budget / tokens))]


class Stepped(Proportioned):
    """Reduces before the decoder, and again inside it."""

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        return stepped_schedule(layers, budget, tokens, self.cuts, self.proportions(budget, tokens))


class CutInside(ReduceInside, Proportioned):
    """Keeps every token up to the first cut."""

    untouched_share: ClassVar[float] = 0.9
    """Largest share of the budget that the layers before the first cut may take."""

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        shape = self.proportions(budget, tokens)
        return inside_schedule(layers, budget, tokens, self.cuts, shape, self.untouched_share)


class DropInside(CutInside, ChooseInside):
    """Keeps every token up to the first cut and only the tokens that `choose` returns at each cut."""


class ScoreInside(DropInside):
    """Keeps the best-scored tokens at each cut."""

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        return largest(self.score(view), count)

    @abstractmethod
    def score(self, view: DecoderView) -> Tensor:
        """Importance of the representatives [K]."""


def last_prompt_row(view: DecoderView) -> Tensor:
    """The row of the last prompt token, [1]."""
    return torch.tensor([len(view.hidden) - 1], device=view.visual.device)


def text_rows(view: DecoderView) -> Tensor:
    """The rows of the text after the image; without any, the row of the last prompt token."""
    return view.text if len(view.text) else last_prompt_row(view)


def attention_to_image(view: DecoderView, rows: Tensor) -> Tensor:
    """Attention of `observed_layer` from some tokens to the representatives, mean over heads and these tokens [K]."""
    return view.attention(rows).mean((0, 1))[view.visual]


def attention_within_image(view: DecoderView) -> Tensor:
    """Attention of `observed_layer` from the representatives to each other, mean over heads and queries [K]."""
    sums = [view.attention(rows).mean(0)[:, view.visual].sum(0) for rows in view.visual.split(ROWS_AT_ONCE)]
    return torch.stack(sums).sum(0) / len(view.visual)


def key_norms(view: DecoderView) -> Tensor:
    """L1 norm of every token's rotated key in `observed_layer`, over all heads [n]."""
    return view.keys().abs().sum((0, 2))
