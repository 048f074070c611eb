"""The compressed sequence of a prefill: the prompt rows of each sample that remain, and what they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from covist.contract.instruction import Instruction
from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.engine.sequence.ledger import Keys, Ledger
from covist.formulas.positions import compress_positions
from covist.reduction import Reduction
from covist.schedule import Schedule
from covist.state import VisualState


@dataclass
class ImageInPrompt:
    """An image of a prompt on its way through the decoder."""

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

    @property
    def kept_rows(self) -> Tensor:
        """Prompt rows of the representatives."""
        return self.rows[self.state.indices]


@dataclass
class Sample:
    """One prompt of the batch: the rows that remain in the sequence, in order."""

    rows: Tensor  # [n] prompt rows
    positions: Tensor  # [prompt length] or [prompt length, axes], uncompressed
    embeddings: Tensor  # [prompt length, d], uncompressed
    images: list[ImageInPrompt] = field(default_factory=list)
    generated: int = 0  # generated tokens at the end, which no method reads
    source: int = 0  # row of the prompt batch; packed prompts share one

    def places(self, prompt_rows: Tensor) -> Tensor:
        """The places of remaining prompt rows in the current sequence."""
        return torch.searchsorted(self.rows, prompt_rows)

    def drop_removed(self) -> None:
        """Remove the image rows that no longer hold a representative."""
        keep = torch.ones_like(self.rows, dtype=torch.bool)
        for image in self.images:
            content = torch.isin(self.rows, image.rows)
            keep &= ~content | torch.isin(self.rows, image.kept_rows)
        self.rows = self.rows[keep]

    def text_after(self, image: ImageInPrompt) -> Tensor:
        """Places of all text tokens of the prompt after an image."""
        visual = torch.cat([torch.cat([other.rows, other.markers]) for other in self.images])
        after = (self.rows >= image.end) & (self.rows < len(self.embeddings) - self.generated)
        return (after & ~torch.isin(self.rows, visual)).nonzero().squeeze(1)

    @property
    def text_tail(self) -> int:
        """How many of its last tokens came after the last reduced image."""
        reduced = [image for image in self.images if image.reduced]
        if not reduced:
            return len(self.rows)
        last = reduced[-1]
        before = int(last.kept_rows.max()) if last.state.count else last.end - 1  # its last row, if none is left
        return int((self.rows > before).sum())

    @property
    def _is_a_line(self) -> bool:
        """Whether positions are the same on all axes: a model may number its images like text."""
        return bool((self.positions == self.positions[:, :1]).all())

    def placed(self, method: Method) -> tuple[Tensor, int]:
        """Positions of the current sequence under the method's position rule, and the shift of later tokens."""
        positions = self.positions[self.rows]
        if not len(positions):  # a prompt of padding only
            return positions, 0
        if positions.ndim == 2 and self._is_a_line:
            numbered, shift = replace(self, positions=_line(self.positions)).placed(method)
            return numbered[:, None].expand(-1, positions.shape[1]), shift
        if positions.ndim == 2:  # multidimensional RoPE keeps its grid: renumbering would destroy it
            for image in self.images:
                positions[self.places(image.kept_rows)] = image.state.positions
            return positions, 0
        if method.positions == "reindex":
            renumbered = positions[:1] + torch.arange(len(positions), device=positions.device)
            return renumbered, int(positions[-1] - renumbered[-1])
        shift = 0
        for image in self.images:
            if not image.reduced:
                continue
            span_rows = (self.rows >= image.start) & (self.rows < image.end)
            start, length = self.positions[image.start], image.length
            if image.is_masked:  # masked tokens may have no positions of their own
                first, last = torch.cat([image.rows, image.markers]).aminmax()
                start, length = self.positions[first], int(self.positions[last] + 1 - self.positions[first])
            span = method.position_span(length, image.budget)
            original = self.positions[self.rows]
            original[self.places(image.kept_rows)] = _line(image.state.positions)
            positions[span_rows] = compress_positions(original[span_rows], start, span, length) - shift
            positions[self.rows >= image.end] -= length - span
            shift += length - span
        return positions, shift


def _line(positions: Tensor) -> Tensor:
    """Positions [n], or [n, axes] that are the same on all axes, as [n]."""
    return positions if positions.ndim == 1 else positions[:, 0]


@dataclass
class Batch:
    """All samples of a prefill, laid out with padding on the left."""

    samples: list[Sample]

    @property
    def width(self) -> int:
        return max(len(sample.rows) for sample in self.samples)

    @property
    def rows(self) -> Tensor:
        """[batch, width] prompt rows of the current sequences; padding has row 0."""
        return self.pad([sample.rows for sample in self.samples])

    @property
    def sources(self) -> Tensor:
        """[batch] which prompt of the model's batch a sample is; packed prompts share one."""
        return torch.tensor([sample.source for sample in self.samples], device=self.samples[0].rows.device)

    def unpad(self, states: Tensor, index: int) -> Tensor:
        """The rows of one sample [n, ...] from padded states [batch, width, ...]."""
        return states[index, states.shape[1] - len(self.samples[index].rows) :]

    def pad(self, per_sample: list[Tensor], fill: float | int | bool = 0) -> Tensor:
        """Stack per-sample rows [n_b, ...] to [batch, width, ...], padded on the left."""
        width = self.width
        if all(len(rows) == width for rows in per_sample):
            return torch.stack(per_sample)
        first = per_sample[0]
        padded = first.new_full((len(per_sample), width, *first.shape[1:]), fill)
        for index, rows in enumerate(per_sample):
            padded[index, width - len(rows) :] = rows
        return padded

    def write_states(self, depth: int, hidden: list[Tensor]) -> Tensor:
        """Write the features of the reductions at `depth` into the sequences [n_b, d], and pad them."""
        for sample, states in zip(self.samples, hidden, strict=True):
            for image in sample.images:
                # An image without a reduction here still has the state of an earlier depth.
                if image.reduced and image.reductions[-1][0] == depth:
                    places = sample.places(image.kept_rows)
                    states[places] = _trainable(states[places], image.state.features.to(states))
        return self.pad(hidden)

    def ledger(self, method: Method, seen: int = 0) -> Ledger:
        """The ledger of the current sequences, for which the model had been given `seen` tokens before."""
        positions: list[Tensor] = []
        shifts: list[int] = []
        numbers: list[Tensor] = []
        weights: list[Tensor] = []
        for sample in self.samples:
            placed, shift = sample.placed(method)
            number = torch.full_like(sample.rows, -1)
            weight = torch.zeros(len(sample.rows), dtype=torch.float32, device=sample.rows.device)
            for index, image in enumerate(sample.images):
                if image.reduced:
                    places = sample.places(image.kept_rows)
                    number[places] = index
                    weight[places] = image.state.weights.log()
            positions.append(placed)
            shifts.append(shift)
            numbers.append(number)
            weights.append(weight)
        keys = Keys(
            rows=self.rows + seen,
            positions=self.pad(positions),
            valid=self.pad([torch.ones_like(sample.rows, dtype=torch.bool) for sample in self.samples], False),
            image=self.pad(numbers, -1),
            log_weight=self.pad(weights),
        )
        return Ledger(
            joined=keys,
            shift=torch.tensor(shifts, device=keys.positions.device),
            shifted=any(shifts),
            padded=len({len(sample.rows) for sample in self.samples}) > 1,
            reduced=any(image.reduced for sample in self.samples for image in sample.images),
            reach=int(keys.positions.max()) if keys.positions.numel() else 0,
            given=seen + len(self.samples[0].embeddings),
            images=max(len(sample.images) for sample in self.samples),
            text_tail=min(sample.text_tail for sample in self.samples),
        )

    def restore_rows(self, hidden: Tensor, length: int) -> Tensor:
        """Hidden states [batch, width, d] in the original shape of the prompts [rows, length, d].

        A removed prompt row gets the state of the last remaining row before it, so that the prediction for the first
        text token after an image is the compressed model's. Packed prompts follow each other in their row.
        """
        prompt = torch.arange(length, device=hidden.device)
        restored: list[list[Tensor]] = [[] for _ in range(self.samples[-1].source + 1)]
        for index, sample in enumerate(self.samples):
            later = self.samples[index + 1 : index + 2]
            is_last = not later or later[0].source != sample.source
            first = int(sample.rows[0]) if restored[sample.source] else 0
            rows = prompt[first : None if is_last else int(later[0].rows[0])]
            # A prompt of padding only has no states; whatever it shows, nobody reads.
            states = self.unpad(hidden, index) if len(sample.rows) else hidden[index]
            latest = torch.searchsorted(sample.rows.to(rows.device), rows, right=True) - 1
            restored[sample.source].append(states[latest.clamp(min=0)])
        return torch.stack([torch.cat(parts) for parts in restored])


def _trainable(embeddings: Tensor, composed: Tensor) -> Tensor:
    """Composed features, whose gradient reaches the embeddings of the representatives before the decoder.

    Choosing and composing are constants there: the paper's method is not trained. Inside the decoder the features
    themselves carry a gradient.
    """
    if composed.requires_grad or not embeddings.requires_grad:
        return composed
    return composed + (embeddings - embeddings.detach())
