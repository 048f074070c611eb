"""A prompt on its way through the decoder, as far as the host knows it: all but which tokens of an image are left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from covist.contract.instruction import Instruction
from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.formulas.positions import compress_positions
from covist.reduction import Reduction
from covist.schedule import Schedule
from covist.state import VisualState


@dataclass
class ImageInPrompt:
    """An image of a prompt on its way through the decoder; its rows are on the host."""

    signals: ImageSignals
    instruction: Instruction
    schedule: Schedule
    budget: int
    start: int  # prompt row of its first token
    end: int  # prompt row after its last token
    rows: Tensor  # [N] prompt rows of its content tokens
    markers: Tensor  # prompt rows of its markers (newlines, text within the image), which survive every stage
    missed: float | None = None  # insufficient coverage, because of which the image runs uncompressed
    reductions: list[tuple[int, Reduction]] = field(default_factory=list)  # (depth, result of the reduction)
    memory: object | None = None  # of `Method.memory`

    @property
    def state(self) -> VisualState:
        return self.reductions[-1][1].state

    @property
    def actual_schedule(self) -> Schedule:
        """The schedule with the actual counts: a method may keep fewer tokens than it may."""
        return replace(self.schedule, stages=tuple((depth, outcome.state.count) for depth, outcome in self.reductions))

    @property
    def length(self) -> int:
        """Tokens of its span in the prompt, markers and masked ones included."""
        return self.end - self.start

    @property
    def is_masked(self) -> bool:
        """Whether the attention mask hides some of its tokens, which are then left out of the sequence."""
        return len(self.rows) + len(self.markers) < self.length

    @property
    def reduced(self) -> bool:
        return self.state.count < len(self.rows)


@dataclass(frozen=True)
class Move:
    """Where the positions of an image go: towards `start` from `length` places to `span`, and then down by `shift`."""

    start: int = 0
    length: int = 1
    span: int = 1
    shift: int = 0

    def __call__(self, positions: Tensor) -> Tensor:
        if self.span != self.length:
            positions = compress_positions(positions, self.start, self.span, self.length)
        return positions - self.shift if self.shift else positions


@dataclass(frozen=True)
class Placing:
    """The positions of a sequence under a position rule, as far as the host knows them."""

    text: Tensor  # [texts] or [texts, axes] of the tokens that always stay
    moves: list[Move]  # of the representatives of each image
    shift: int = 0  # of later tokens


@dataclass
class Sample:
    """One prompt of the batch. All but the embeddings is on the host."""

    rows: Tensor  # [n] prompt rows that are not masked
    positions: Tensor  # [prompt length] or [prompt length, axes], uncompressed
    embeddings: Tensor  # [prompt length, d], uncompressed
    images: list[ImageInPrompt] = field(default_factory=list)
    generated: int = 0  # generated tokens at the end, which no method reads
    source: int = 0  # row of the prompt batch; packed prompts share one

    @cached_property
    def staying(self) -> Tensor:
        """[texts] rows that stay in every stage: text, and the markers of images."""
        return _without(self.rows, [image.rows for image in self.images])

    @property
    def length(self) -> int:
        """Tokens of the current sequence."""
        return len(self.staying) + sum(image.state.count for image in self.images)

    def text_after(self, image: ImageInPrompt) -> Tensor:
        """Prompt rows of all text tokens after an image, without generated ones."""
        text = _without(self.staying, [other.markers for other in self.images])
        return text[(text >= image.end) & (text < len(self.embeddings) - self.generated)]

    @property
    def reach(self) -> int:
        """No position is larger: representatives stay within the positions of their image, and shifts are down."""
        return int(self.positions[self.rows].max()) if len(self.rows) else 0

    @property
    def is_line(self) -> bool:
        """Whether positions are one number per token, or the same on all axes: a model may number images like text."""
        return self.positions.ndim == 1 or bool((self.positions == self.positions[:, :1]).all())

    def placing(self, method: Method) -> Placing:
        """The positions of the current sequence, each kept as it is or moved with the span of its image."""
        if not self.is_line:  # multidimensional RoPE keeps its grid: renumbering would destroy it
            return Placing(self.positions[self.staying], [Move() for _ in self.images])
        original = as_line(self.positions)
        text, moves, shift = original[self.staying], [], 0
        for image in self.images:
            if not image.reduced:
                moves.append(Move(shift=shift))
                continue
            start, length = self._span(image, original)
            span = method.position_span(length, image.budget)
            moves.append(Move(start, length, span, shift))
            within = (self.staying >= image.start) & (self.staying < image.end)
            text[within] = moves[-1](original[self.staying[within]])
            text[self.staying >= image.end] -= length - span
            shift += length - span
        return Placing(text, moves, shift)

    def _span(self, image: ImageInPrompt, positions: Tensor) -> tuple[int, int]:
        """The first position of an image, and over how many its tokens extend."""
        if not image.is_masked:
            return int(positions[image.start]), image.length
        # masked tokens may have no positions of their own
        first, last = torch.cat([image.rows, image.markers]).aminmax()
        return int(positions[first]), int(positions[last] + 1 - positions[first])


def as_line(positions: Tensor) -> Tensor:
    """Positions [n], or [n, axes] that are the same on all axes, as [n]."""
    return positions if positions.ndim == 1 else positions[:, 0]


def _without(rows: Tensor, others: list[Tensor]) -> Tensor:
    return rows[~torch.isin(rows, torch.cat(others))] if others else rows
