"""An image or a video in a prompt: the tokens that would stand for it without compression, and how many remain.

The processor writes it into the data of the item, whence it reaches the model with all caches on the way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from covist.budget import Budget


@dataclass(frozen=True)
class ImageRequest:
    """The part of a request that concerns an image or a video.

    budget: None means the engine's
    text, tokens, pieces: the question, if the selection uses it
    """

    budget: Budget | None = None
    text: str = ""
    tokens: Sequence[int] = ()
    pieces: Sequence[str] = ()

    def identify(self, image: str) -> str:
        """The cache key of an image, from its key without such a request."""
        if self == NOTHING_ASKED:
            return image
        return hashlib.blake2b(f"{image}{self}".encode(), digest_size=32).hexdigest()


NOTHING_ASKED = ImageRequest()


@dataclass(frozen=True)
class Part:
    """An image, or the frames of a video that are compressed together.

    length: its rows; text and newlines after content belong to it
    tokens, count: how many of the rows are content, and how many of these remain
    positions: how many positions the remaining rows take on a single axis
    frames: how many of a video it has, with equally many tokens each
    """

    length: int
    tokens: int
    count: int
    positions: int
    frames: int = 1


Runs = Sequence[tuple[int, int, bool]]


def runs_of(ids: Sequence[int], embeds: Tensor) -> Runs:
    """(token, how often, whether embeddings take its place), in order."""
    pairs = groupby(zip(ids, embeds.tolist(), strict=True))
    return [(token, len([*same]), embedded) for (token, embedded), same in pairs]


def part_lengths(embeds: Tensor, tokens: Sequence[int]) -> list[int]:
    """The rows of parts with so many content tokens each, from the first embedding to the last."""
    places = embeds.nonzero()[:, 0].tolist()
    starts = [places[first] for first in accumulate([0, *tokens[:-1]])]
    return [after - first for first, after in pairwise([*starts, places[-1] + 1])]


@dataclass(frozen=True)
class Item:
    """An image or a video.

    runs: of the uncompressed prompt, see `runs_of`
    parts: what is compressed separately; together all content
    newlines: embeddings between the content, which always remain
    question: text, tokens and pieces of an `ImageRequest`
    fields: arguments of the encoder that are not lists of items: (dimension, length) of this item's part in one that
        is concatenated, () for one that all items share
    """

    modality: str
    runs: Runs
    parts: Sequence[Part]
    newlines: int = 0
    question: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def pack(self) -> Tensor:
        """As a tensor of bytes, because vLLM passes tensors."""
        return torch.frombuffer(bytearray(json.dumps(asdict(self)).encode()), dtype=torch.uint8)

    @classmethod
    def unpack(cls, packed: Tensor) -> Item:
        values = json.loads(bytes(packed.cpu().numpy()))
        return cls(**{**values, "parts": [Part(**part) for part in values["parts"]]})

    # -- the uncompressed prompt -------------------------------------------------------------------------------------

    @cached_property
    def ids(self) -> list[int]:
        return [token for token, times, _ in self.runs for _ in range(times)]

    @cached_property
    def embeds(self) -> Tensor:
        """Which tokens embeddings take the place of, [n]."""
        return torch.tensor([embedded for _, times, embedded in self.runs for _ in range(times)])

    @cached_property
    def inside(self) -> slice:
        """From the first embedding to the last: between them may be text, such as the time of a frame."""
        places = self.embeds.nonzero()[:, 0]
        return slice(int(places[0]), int(places[-1]) + 1)

    @property
    def length(self) -> int:
        return self.inside.stop - self.inside.start

    @property
    def slot(self) -> int:
        """The token that embeddings mostly take the place of."""
        return max((times, token) for token, times, embedded in self.runs if embedded)[1]

    # -- what remains ------------------------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        return all(part.count == part.tokens for part in self.parts)

    @property
    def rows(self) -> int:
        """How many rows take the place of those inside."""
        return self.length - sum(part.tokens - part.count for part in self.parts)

    @property
    def positions(self) -> int:
        """How many positions they take on a single axis."""
        return sum(part.positions for part in self.parts)

    @property
    def short_ids(self) -> list[int]:
        """The tokens of the compressed prompt: what is inside becomes rows, structure included."""
        return [*self.ids[: self.inside.start], *[self.slot] * self.rows, *self.ids[self.inside.stop :]]

    def is_row(self, ids: Sequence[int]) -> Tensor:
        """Which of `short_ids` are rows."""
        rows = torch.zeros(len(ids), dtype=torch.bool)
        rows[self.inside.start : self.inside.start + self.rows] = True
        return rows


def remaining_positions(
    whole: Tensor, delta: int, placed: Iterable[tuple[int, Item]], one_axis: bool
) -> tuple[Tensor, int]:
    """Positions [axes, n] of a compressed prompt, and what to add to the index of a generated token to get its own.

    whole, delta: the same of the uncompressed prompt
    placed: where the tokens of each item begin in it, in order
    Every row of an item gets the position of its first embedding. Text keeps its own; on one axis it moves up if the
    method lets items take fewer positions.
    """
    parts, place, closed = [], 0, 0
    for start, item in placed:
        first = start + item.inside.start
        parts.append(whole[:, place:first] - closed)
        parts.append((whole[:, first : first + 1] - closed).expand(-1, item.rows))
        place = start + item.inside.stop
        closed += item.length - item.positions if one_axis else 0
    positions = torch.cat([*parts, whole[:, place:] - closed], dim=1)
    return positions, whole.shape[1] + delta - closed - positions.shape[1]


def argument_of(arguments: Mapping[str, Any], items: Sequence[Item], part: slice) -> dict[str, Any]:
    """The arguments of the encoder for some of the items that they were made for."""
    return dict(_cut(arguments, items, part))


def _cut(arguments: Mapping[str, Any], items: Sequence[Item], part: slice) -> Iterator[tuple[str, Any]]:
    for name, value in arguments.items():
        kind = items[0].fields.get(name)
        if kind is None:
            yield name, value[part]
        elif not kind:
            yield name, value
        else:
            ends = [0, *accumulate(item.fields[name][1] for item in items)]
            yield name, value.narrow(kind[0], ends[part.start], ends[part.stop] - ends[part.start])
