"""The sequences of a prefill as they are between two reductions: which tokens are left, in which order, and what they
are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.contract.method import Method
from covist.devices import to_device
from covist.engine.sequence.host import at_rows, upload
from covist.engine.sequence.images import ImageInPrompt, Placing, Sample, as_line
from covist.engine.sequence.ledger import Keys, Ledger

PADDING = -1
"""The row of padding: before every other, so that sorting leaves it on the left."""


class Batch:
    """The current sequences of all samples, padded on the left.

    How many tokens there are is known on the host, which of an image only on the device. So tokens are numbered in an
    order that the host knows, and sorting their rows on the device tells the order of the sequences. Token 0 is the
    padding; then come the tokens that always stay, sample by sample, and the representatives, image by image. A few
    operators do this for any number of samples and images, and none of them waits.
    """

    def __init__(self, samples: Sequence[Sample], method: Method):
        self.samples, self._method = list(samples), method
        self.lengths = [sample.length for sample in samples]
        self.width = max(self.lengths)
        self._images = [image for sample in samples for image in sample.images]
        self._staying = sum(len(sample.staying) for sample in samples)
        self._counts = [[image.state.count for image in sample.images] for sample in samples]
        sizes = (self._staying + 1, *chain.from_iterable(self._counts))
        self._ends = list(accumulate(sizes))  # where the tokens of each image begin, and where the last one's end
        self._prompt = len(samples[0].embeddings)
        self._device = samples[0].embeddings.device
        self._upload()

    @property
    def padded(self) -> bool:
        return min(self.lengths) < self.width

    def before(self, index: int, rows: Tensor) -> Tensor:
        """How many tokens of a sequence stand before prompt rows [k] of the host that are not within an image.

        Only where the representatives of an image lie within its span depends on which tokens are left.
        """
        sample = self.samples[index]
        found = torch.searchsorted(sample.staying, rows)
        for image, count in zip(sample.images, self._counts[index], strict=True):
            found = found + count * (rows >= image.end)
        return found

    def text_tail(self, index: int) -> int:
        """How many of the last tokens of a sequence came after the last reduced image."""
        ends = [image.end for image in self.samples[index].images if image.reduced]
        return self.lengths[index] - (int(self.before(index, torch.tensor(ends[-1]))) if ends else 0)

    # -- what the host knows -------------------------------------------------------------------------------------------

    def _upload(self) -> None:
        """Everything that the host knows, in one transfer."""
        placings = [sample.placing(self._method) for sample in self.samples]
        self._placings, self._is_line = placings, all(sample.is_line for sample in self.samples)
        sources = torch.tensor([sample.source for sample in self.samples])
        self._rebased = bool(sources.any())
        parts = (
            self._numbers(),
            torch.cat([torch.tensor([PADDING]), *map(self._flat_staying, self.samples)]),
            torch.cat([sources[:0], *(self._flat(sample, image.rows) for sample, image in self._pairs)]),
            self._offsets(),
            self._text_positions(placings),
            self._image_numbers(),
            torch.tensor([placing.shift for placing in placings]),
            sources,
            self._firsts(),
        )
        uploaded = upload(parts, self._device)
        self._number, self._text_rows, self._table, self._offset, self._text_position = uploaded[:5]
        self._image_number, self._shift, self.sources, self._first = uploaded[5:]

    @property
    def _pairs(self) -> list[tuple[Sample, ImageInPrompt]]:
        return [(sample, image) for sample in self.samples for image in sample.images]

    def _flat(self, sample: Sample, rows: Tensor) -> Tensor:
        """Rows of a prompt, counted through all prompts."""
        return rows + sample.source * self._prompt

    def _flat_staying(self, sample: Sample) -> Tensor:
        return self._flat(sample, sample.staying)

    def _numbers(self) -> Tensor:
        """[batch, width] the tokens of each sequence, in the order of their numbers."""
        lines, text, image = [], 1, 0
        for sample, length in zip(self.samples, self.lengths, strict=True):
            ends = self._ends[image], self._ends[image + len(sample.images)]
            own = [torch.zeros(self.width - length, dtype=torch.long), torch.arange(text, text + len(sample.staying))]
            lines.append(torch.cat([*own, torch.arange(*ends)]))
            text, image = text + len(sample.staying), image + len(sample.images)
        return torch.stack(lines)

    def _offsets(self) -> Tensor:
        """Where the table of rows begins that a representative's index counts in."""
        sizes = [len(image.rows) for image in self._images]
        starts = torch.tensor([0, *accumulate(sizes)], dtype=torch.long)[:-1]
        return starts.repeat_interleave(torch.tensor([*chain.from_iterable(self._counts)], dtype=torch.long))

    def _text_positions(self, placings: Sequence[Placing]) -> Tensor:
        """[1 + texts(, axes)] of the padding and of the tokens that always stay."""
        text = torch.cat([placing.text if self._is_line else self._on_axes(placing.text) for placing in placings])
        return torch.cat([torch.zeros_like(text[:1]), text] if len(text) else [text.new_zeros(1, *text.shape[1:])])

    def _on_axes(self, positions: Tensor) -> Tensor:
        axes = self.samples[0].positions.shape[-1]
        return positions[:, None].expand(-1, axes) if positions.ndim == 1 else positions

    def _image_numbers(self) -> Tensor:
        """[1 + tokens] which reduced image of its prompt a token belongs to; -1 for all others."""
        made = torch.full((self._ends[-1],), -1)
        numbers = [index for sample in self.samples for index in range(len(sample.images))]
        for number, image, start, end in zip(numbers, self._images, self._ends, self._ends[1:], strict=False):
            made[start:end] = number if image.reduced else -1
        return made

    def _firsts(self) -> Tensor:
        """[prompts, 1] how many tokens of all sequences come before those of a prompt of the model's batch."""
        before = [0] * (self.samples[-1].source + 2)
        for sample, length in zip(self.samples, self.lengths, strict=True):
            before[sample.source + 1] += length
        last = max(0, sum(self.lengths) - 1)
        return torch.tensor([min(count, last) for count in accumulate(before[:-1])])[:, None]

    # -- what the device knows -----------------------------------------------------------------------------------------

    @cached_property
    def _rows_of_tokens(self) -> Tensor:
        """[1 + tokens] the rows of all tokens, counted through all prompts."""
        if not self._images:
            return self._text_rows
        indices = _joined([image.state.indices for image in self._images]).to(self._device)
        return torch.cat([self._text_rows, self._table.index_select(0, indices + self._offset)])

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """Rows and numbers of the tokens [batch, width] in the order of the sequences."""
        rows, order = self._rows_of_tokens[self._number].sort(1)
        return rows, self._number.gather(1, order)

    @property
    def flat_rows(self) -> Tensor:
        """[batch, width] prompt rows of the current sequences, counted through all prompts; `PADDING` first."""
        return self._sorted[0]

    @cached_property
    def rows(self) -> Tensor:
        """[batch, width] prompt rows of the current sequences; padding has row 0."""
        rows = self.flat_rows - self.sources[:, None] * self._prompt if self._rebased else self.flat_rows
        return rows.clamp(min=0) if self.padded else rows

    @cached_property
    def _places(self) -> Tensor:
        """[tokens] the place of each token in [batch x width], in the order of their numbers."""
        padding = len(self.samples) * self.width - sum(self.lengths)
        return self._sorted[1].flatten().argsort(stable=True)[padding:]

    def places(self, image: ImageInPrompt) -> Tensor:
        """[K] the places of an image's representatives in [batch x width]."""
        number = next(number for number, one in enumerate(self._images) if one is image)
        return self._places[self._ends[number] - 1 : self._ends[number + 1] - 1]

    def columns(self, index: int, image: ImageInPrompt) -> Tensor:
        """[K] the places of an image's representatives in the sequence of their sample."""
        return self.places(image) - (index * self.width + self.width - self.lengths[index])

    def unpad(self, states: Tensor, index: int) -> Tensor:
        """The rows of one sample [n, ...] from padded states [batch, width, ...]."""
        return states[index, states.shape[1] - self.lengths[index] :]

    # -- states --------------------------------------------------------------------------------------------------------

    def enter(self, embeddings: Tensor) -> Tensor:
        """The states [batch, width, d] that enter the decoder, from the embeddings of the prompts [prompts, n, d]."""
        rows = self.flat_rows.clamp(min=0) if self.padded else self.flat_rows
        return self.write_states(0, embeddings.flatten(0, 1)[rows])

    def shorten(self, depth: int, before: Batch, states: Tensor) -> Tensor:
        """The states of an earlier batch that are left before layer `depth`."""
        return self.write_states(depth, along_tokens(states, self.columns_in(before)))

    def columns_in(self, earlier: Batch) -> Tensor:
        """[batch, width] the places of the tokens that are left in an earlier batch, whose width counts its padding."""
        return torch.searchsorted(earlier.flat_rows, self.flat_rows)

    def write_states(self, depth: int, states: Tensor) -> Tensor:
        """Write the features of the reductions at `depth` into fresh states [batch, width, d]; padding is 0."""
        if self.padded:
            states = states.masked_fill(self.valid[..., None].logical_not(), 0)
        # An image without a reduction here still has the state of an earlier depth.
        changed = [image for image in self._images if image.reduced and image.reductions[-1][0] == depth]
        if changed:
            every = len(changed) == len(self._images)
            places = self._places[self._staying :] if every else torch.cat([self.places(image) for image in changed])
            features = _joined([image.state.features for image in changed]).to(states)
            flat = states.flatten(0, 1)
            flat.index_copy_(0, places, _trainable(flat, places, features))
        return states

    def restore_rows(self, hidden: Tensor, length: int) -> Tensor:
        """Hidden states [batch, width, d] in the original shape of the prompts [prompts, length, d].

        A removed prompt row gets the state of the last remaining row before it, so that the prediction for the first
        text token after an image is the compressed model's. Packed prompts follow each other in their row.
        """
        rows, states = self.flat_rows.flatten(), hidden.flatten(0, 1)
        if self.padded:
            ends = ((index + 1) * self.width for index in range(len(self.samples)))
            columns = torch.cat([torch.arange(end - own, end) for end, own in zip(ends, self.lengths, strict=True)])
            rows, states = at_rows(rows, columns), at_rows(states, columns)
        prompts = len(self._first)
        latest = torch.searchsorted(rows, torch.arange(prompts * length, device=rows.device), right=True) - 1
        # Before its first row, a prompt shows that row, and not the last one of the prompt before it.
        latest = torch.maximum(latest.view(prompts, length), self._first)
        return states[latest.to(states.device)]

    # -- the ledger ----------------------------------------------------------------------------------------------------

    @cached_property
    def valid(self) -> Tensor:
        """[batch, width] bool, False for padding."""
        return self.flat_rows >= 0

    def ledger(self, seen: int = 0) -> Ledger:
        """The ledger of the current sequences, for which the model had been given `seen` tokens before."""
        reduced = any(image.reduced for image in self._images)
        positions, shift = self._positions()
        keys = Keys(
            rows=self.rows + seen if seen else self.rows,
            positions=positions,
            valid=self.valid,
            image=self._image_number[self._sorted[1]],
            log_weight=self._log_weights(),
        )
        return Ledger(
            joined=keys,
            shift=shift,
            shifted=reduced if self._method.positions == "reindex" else any(one.shift for one in self._placings),
            padded=self.padded,
            reduced=reduced,
            reach=max(sample.reach for sample in self.samples),
            given=seen + self._prompt,
            images=max(len(sample.images) for sample in self.samples),
            text_tail=min(map(self.text_tail, range(len(self.samples)))),
        )

    def _log_weights(self) -> Tensor:
        """[batch, width] log m of representatives, 0 elsewhere."""
        if not self._images:
            return torch.zeros(self.flat_rows.shape, dtype=torch.float32, device=self._device)
        weights = _joined([image.state.weights for image in self._images]).to(self._device)
        return F.pad(weights.log(), (self._staying + 1, 0))[self._sorted[1]]

    def _positions(self) -> tuple[Tensor, Tensor]:
        """Positions [batch, width(, axes)] under the method's position rule, and the shift of later tokens [batch]."""
        if self._method.positions == "reindex" and self._is_line:
            placed, shift = self._renumbered()
        else:
            moves = [move for placing in self._placings for move in placing.moves]
            kept = [move(self._of_image(image)) for move, image in zip(moves, self._images, strict=True)]
            placed, shift = torch.cat([self._text_position, *kept])[self._sorted[1]], self._shift
        axes = self.samples[0].positions.shape[1:]
        return placed if placed.ndim == 2 + len(axes) else placed[..., None].expand(-1, -1, *axes), shift

    def _of_image(self, image: ImageInPrompt) -> Tensor:
        """Positions of the representatives of an image [K], or [K, axes] if some sequence is not a line."""
        positions = image.state.positions.to(self._device)
        return as_line(positions) if self._is_line else self._on_axes(positions)

    def _renumbered(self) -> tuple[Tensor, Tensor]:
        """Positions [batch, width] without gaps from the first one on, and by how much they fall behind [batch]."""
        original = to_device(torch.stack([as_line(sample.positions) for sample in self.samples]), self._device)
        uncompressed = original.gather(1, self.rows)
        starts = torch.tensor([[self.width - max(1, length)] for length in self.lengths])
        starts, places = upload([starts, torch.arange(self.width) - starts], self._device)
        numbered = uncompressed.gather(1, starts) + places
        return numbered.clamp(min=0), uncompressed[:, -1] - numbered[:, -1]


def along_tokens(value: Tensor, columns: Tensor) -> Tensor:
    """The tokens `columns` [batch, n] of every sample of [batch, tokens, ...]."""
    index = columns.to(value.device).view(*columns.shape, *[1] * (value.ndim - 2))
    return value.take_along_dim(index, 1)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _trainable(states: Tensor, places: Tensor, composed: Tensor) -> Tensor:
    """Composed features, whose gradient reaches the embeddings of the representatives before the decoder.

    Choosing and composing are constants there: the paper's method is not trained. Inside the decoder the features
    themselves carry a gradient.
    """
    if composed.requires_grad or not states.requires_grad:
        return composed
    embeddings = states[places]
    return composed + (embeddings - embeddings.detach())
