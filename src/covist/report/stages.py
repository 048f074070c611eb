"""What happened to an image, stage by stage: plain data for reports and drawings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from covist.grid import Grid, PartialGrid
from covist.reduction import Reduction
from covist.report.certificate import Certificate
from covist.report.pixels import Preprocessing
from covist.units import counted, number

Figure = TypeVar("Figure", float, "float | None")
Held = TypeVar("Held", Tensor, "Tensor | None", dict[str, Tensor])


class OnCpu(Generic[Held]):
    """A field whose tensors stay on the model's device until they are first read; then they move to the CPU."""

    def __init__(self, *default: None):
        """`OnCpu(None)` may be left out."""
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, instance: Any, value: Held) -> None:
        held: Any = value
        if isinstance(held, dict):
            held = {name: values.detach() for name, values in held.items()}
        elif held is not None:
            held = held.detach()
        instance.__dict__[self._name] = held

    @overload
    def __get__(self, instance: None, owner: type) -> OnCpu[Held]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Held: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            if not self._default:
                raise AttributeError(self._name)  # so that a dataclass sees no default
            return self._default[0]
        held = instance.__dict__[self._name]
        if isinstance(held, dict):
            held.update((name, values.cpu()) for name, values in held.items())
        elif held is not None:
            held = instance.__dict__[self._name] = held.cpu()
        return held


class Number(Generic[Figure]):
    """A field whose number stays on the model's device until it is first read; the default is 0.0 or None."""

    def __init__(self, default: Figure):
        self._default: Figure = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, instance: Any, value: Figure | Tensor) -> None:
        instance.__dict__[self._name] = value

    @overload
    def __get__(self, instance: None, owner: type) -> Number[Figure]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Figure: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self._default
        held = instance.__dict__[self._name]
        if isinstance(held, Tensor):
            held = instance.__dict__[self._name] = float(held)
        return held


@dataclass(frozen=True, eq=False, repr=False)
class StageReport:
    """An image's state from one depth on. Tensors move to the CPU when they are first read.

    depth:      the first decoder layer that sees this state
    withheld:   evidence that the weight limit kept back, Eq. 15
    coverage:   share of the evidence that the kept tokens cover, Eq. 5; None if the method does not measure it
    kept:       the content tokens that stayed, [K], numbered as in the uncompressed image
    positions:  their rotary positions, [K] or [K, axes]
    weights:    how many tokens each of them counts for, [K]
    assignment: for every token of the stage before, the place in `kept` of its representative; None if tokens were
                dropped without a representative
    maps:       evidence over the tokens of the stage before, by name
    captions:   what bright means in a map, by the map's name
    covered:    how well the kept tokens cover each token of the stage before, from 0 to 1; None if the method does not
                measure it
    """

    depth: int
    kept: OnCpu[Tensor] = OnCpu()
    positions: OnCpu[Tensor] = OnCpu()
    weights: OnCpu[Tensor] = OnCpu()
    assignment: OnCpu[Tensor | None] = OnCpu()
    maps: OnCpu[dict[str, Tensor]] = OnCpu()
    captions: dict[str, str] = field(default_factory=dict)
    withheld: Number[float] = Number(0.0)
    coverage: Number[float | None] = Number(None)
    covered: OnCpu[Tensor | None] = OnCpu(None)

    @classmethod
    def of(cls, depth: int, reduction: Reduction, encoded: PartialGrid | None = None) -> StageReport:
        """What a reduction before layer `depth` did, without the features of its state.

        If only a part of the image was `encoded`, tokens are numbered as in the whole, whose others are discarded.
        """
        kept, assignment, maps = reduction.state.indices, reduction.assignment, reduction.maps
        covered = reduction.covered
        if encoded is not None:
            kept = torch.tensor(encoded.cells, device=kept.device)[kept]
            if depth == 0:
                assignment, maps = None, {name: encoded.spread(values) for name, values in maps.items()}
                covered = None if covered is None else encoded.spread(covered)
        return cls(
            depth=depth,
            withheld=reduction.withheld,
            kept=kept,
            positions=reduction.state.positions,
            weights=reduction.state.weights,
            assignment=assignment,
            maps=maps,
            captions=reduction.captions,
            coverage=reduction.coverage,
            covered=covered,
        )

    @property
    def indices(self) -> Tensor:
        """`kept`, by its name in a `VisualState`."""
        return self.kept

    def __repr__(self) -> str:
        ends = dict.fromkeys(f"{float(end):.3g}" for end in self.weights.aminmax()) if len(self.kept) else ()
        weights = f", weight{'s' * (len(ends) > 1)} {' to '.join(ends)}" if ends else ""
        return f"StageReport(from layer {self.depth} on: {counted(len(self.kept), 'token')}{weights})"


@dataclass(frozen=True, eq=False, repr=False)
class ImageReport:
    """One image, video or segment of a video: what was kept, and which tokens each kept token represents."""

    sample: int
    grid: Grid
    tokens: int  # content tokens before compression
    markers: int  # newline tokens, kept in every layer
    budget: int
    tokens_per_layer: tuple[int, ...]  # in prefill
    cached_tokens_per_layer: tuple[int, ...]  # in the cache after prefill
    stages: tuple[StageReport, ...]
    read_pixels: Callable[[], list[Tensor]] | None = None  # -> [3, h, w] per view, as the encoder saw it
    preprocessing: Preprocessing = Preprocessing()
    continues: bool = False  # whether this is a further segment of the preceding video
    segments: tuple[int, ...] = ()  # frames of each segment, if the report joins several
    missed: float | None = None  # insufficient coverage, because of which the image runs uncompressed
    uniform: bool = False  # whether attention counted as uniform, because the encoder's cannot be read
    encoded: int | None = None  # tokens whose patches entered the vision tower, if a method left others out

    @property
    def encoded_tokens(self) -> int:
        """Content tokens whose patches entered the vision tower."""
        return self.tokens if self.encoded is None else self.encoded

    @property
    def is_video(self) -> bool:
        return self.grid.relation == "frames"

    @property
    def kind(self) -> str:
        return "video" if self.is_video else "image"

    @property
    def frames(self) -> int:
        """Moments of a video as the model sees it (Qwen models merge two successive frames); 1 for an image."""
        return self.grid.frames

    @property
    def tokens_per_frame(self) -> float:
        """Content tokens of a frame before compression."""
        return self.tokens / self.frames

    def kept_per_frame(self, stage: int = -1) -> Tensor:
        """How many tokens of each frame a stage keeps, [frames]."""
        return torch.bincount(self._frame_of_kept(stage), minlength=self.frames)

    def weight_per_frame(self, stage: int = -1) -> Tensor:
        """The weight of these tokens, [frames], which includes tokens of other frames that they represent."""
        weights = self.stages[stage].weights.float()
        return torch.bincount(self._frame_of_kept(stage), weights, minlength=self.frames)

    def coverage_per_frame(self) -> Tensor | None:
        """How well the first stage covers the tokens of each frame, on average, [frames]; None if not measured."""
        covered = self.stages[0].covered
        if covered is None:
            return None
        frame = self.grid.view_numbers() if self.is_video else torch.zeros(len(covered), dtype=torch.long)
        sums, sizes = (torch.bincount(frame, part, self.frames) for part in (covered, torch.ones_like(covered)))
        return sums / sizes.clamp(min=1)

    def _frame_of_kept(self, stage: int) -> Tensor:
        return self.grid.view_numbers()[self.stages[stage].kept] if self.is_video else self.stages[stage].kept * 0

    @property
    def mean_tokens(self) -> float:
        """Content tokens in prefill, averaged over the decoder's layers."""
        return sum(self.tokens_per_layer) / len(self.tokens_per_layer)

    @property
    def mean_cached_tokens(self) -> float:
        """Content tokens in the cache after prefill, averaged over layers: what a budget counts.

        It equals `mean_tokens` unless a method cuts the cache of layers that saw more tokens.
        """
        return sum(self.cached_tokens_per_layer) / len(self.cached_tokens_per_layer)

    @property
    def summary(self) -> str:
        """Visual tokens after and before compression."""
        kept = f"{number(self.mean_tokens)} of {self.tokens} visual tokens per layer"
        same = self.cached_tokens_per_layer == self.tokens_per_layer
        return kept if same else f"{kept}, {number(self.mean_cached_tokens)} in the cache"

    @property
    def certificate(self) -> Certificate | None:
        """How well the first reduction represents the image; None if the method does not measure it."""
        first = self.stages[0]
        if first.coverage is None:
            return None
        return Certificate(len(first.kept), self.tokens, first.coverage, first.withheld, self.missed)

    @property
    def kept(self) -> Tensor:
        """The content tokens that reach the last layer, [K]."""
        return self.stages[-1].kept

    @property
    def weights(self) -> Tensor:
        """Their weights, [K]."""
        return self.stages[-1].weights

    @property
    def largest_weight(self) -> float:
        """Of any token that some stage keeps."""
        return float(torch.cat([stage.weights for stage in self.stages]).max())

    @property
    def positions(self) -> Tensor:
        """Their rotary positions, [K] or [K, axes]."""
        return self.stages[-1].positions

    @property
    def assignment(self) -> Tensor | None:
        """For every content token the place in `kept` of its final representative, [N]."""
        return self.assignment_at(-1)

    def assignment_at(self, stage: int) -> Tensor | None:
        """For every content token the place in `stages[stage].kept` of its representative, [N].

        None if tokens were dropped without a representative.
        """
        place = torch.arange(self.tokens)
        for earlier in range(range(len(self.stages))[stage] + 1):
            step = self.stages[earlier]
            if step.assignment is not None:
                place = step.assignment[place]
            elif len(step.kept) < len(self.tokens_before(earlier)):
                return None
        return place

    def discarded_at(self, stage: int) -> Tensor:
        """The content tokens that have no representative from a stage on."""
        gone = torch.full((self.tokens,), self.assignment_at(stage) is None)
        gone[self.stages[stage].kept] = False
        return gone.nonzero()[:, 0]

    def tokens_before(self, stage: int) -> Tensor:
        """The content tokens that a stage chose from."""
        return torch.arange(self.tokens) if stage == 0 else self.stages[stage - 1].kept

    def layers_of(self, stage: int) -> range:
        """The decoder layers that see a stage."""
        ends = [later.depth for later in self.stages[1:]] + [len(self.tokens_per_layer)]
        return range(self.stages[stage].depth, ends[stage])

    @cached_property
    def pixels(self) -> tuple[Tensor, ...]:
        """The image of each view as the encoder saw it, [h, w, 3] uint8; empty if the family does not provide it.

        Until this is read, the report refers to the `pixel_values` of the call and copies nothing.
        """
        return () if self.read_pixels is None else tuple(map(self.preprocessing.undo, self.read_pixels()))

    def describe_stage(self, stage: int) -> str:
        """The layers of a stage and how many tokens they see; for a video also per frame."""
        layers = self.layers_of(stage)
        span = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
        tokens = self.tokens_per_layer[layers[0]]
        each = f" ({number(round(tokens / self.frames, 2))} per frame)" if self.is_video else ""
        return f"{span}: {counted(tokens, 'token')}{each}"

    def describe(self) -> str:
        """`image` or `video of 16 frames`."""
        return f"video of {counted(self.frames, 'frame')}" if self.is_video else "image"

    def __repr__(self) -> str:
        views = " and ".join(f"{rows} x {columns}" for rows, columns in dict.fromkeys(self.grid.views))
        what = f"{self.describe()}, " if self.is_video else ""
        each = " each" if self.is_video else ""
        stages = ", ".join(self.describe_stage(stage) for stage in range(len(self.stages)))
        return f"ImageReport({what}{self.tokens} tokens in {views}{each}; {stages})"
