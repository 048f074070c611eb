"""From the tower's signals of an image to the rows that enter the prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covist.budget import Budget
from covist.contract.decoder import Decoder
from covist.contract.instruction import Instruction, TextSpace
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.state import VisualState
from covist.vllm.rows import image_rows
from covist.vllm.settings import Serving


@dataclass(frozen=True)
class ImageRequest:
    """The part of a request that concerns an image, on its way from the front end to a worker.

    budget: None means the engine's
    text, tokens, pieces: the question, if the selection uses it
    """

    budget: Budget | None = None
    text: str = ""
    tokens: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()

    @property
    def _fields(self) -> tuple[Any, ...]:
        return None if self.budget is None else str(self.budget), self.text, self.tokens, self.pieces

    def pack(self) -> Tensor:
        """The request as a tensor of bytes, because vLLM passes tensors."""
        return torch.frombuffer(bytearray(json.dumps(self._fields).encode()), dtype=torch.uint8)

    def identify(self, image: str) -> str:
        """The cache key of an image, from its key without such a request."""
        if self == ImageRequest():
            return image
        return hashlib.blake2b(f"{image}{self._fields}".encode(), digest_size=32).hexdigest()

    @classmethod
    def unpack(cls, packed: Tensor) -> ImageRequest:
        budget, text, tokens, pieces = json.loads(bytes(packed.cpu().tolist()))
        asked = None if budget is None else Budget.parse(budget)
        return cls(asked, text, tuple(tokens), tuple(pieces))


class ImageCompressor:
    """Reduces images to as many rows as they have placeholders."""

    def __init__(self, serving: Serving, decoder: Decoder, embed: Callable[[Tensor], Tensor], axes: int):
        self._serving, self._decoder, self._embed, self._axes = serving, decoder, embed, axes
        self.text_tower: TextSpace | None = None

    def rows(self, signals: ImageSignals, request: ImageRequest) -> Tensor:
        """[count and markers, d + side columns]."""
        method, count = self._serving.method, self._serving.count(request.budget, signals.grid.size)
        context = ImageContext(signals, self._positions(signals), self._read(request, signals), self._decoder)
        context.text_tower = self.text_tower
        state = method.begin(context, count).state
        if state.count < count:
            state = _filled(state, context, count)
        rows = image_rows(signals, state, method, count)
        expected = count + int((~signals.content).sum())
        if len(rows) != expected:  # vLLM would silently truncate it
            raise CovistError(f"{method.name} kept {len(rows)} rows of an image, but the prompt has {expected}")
        return rows

    def _positions(self, signals: ImageSignals) -> Tensor:
        """Positions of the content tokens relative to the image's first one: [N], or [N, axes] on a grid."""
        if self._axes == 1:
            return signals.content_rows
        (rows, columns), *_ = signals.grid.views
        index = torch.arange(rows * columns, device=signals.content.device)
        return torch.stack([index * 0, index // columns, index % columns], -1)

    def _read(self, request: ImageRequest, signals: ImageSignals) -> Instruction:
        tokens = torch.tensor(request.tokens, dtype=torch.long, device=signals.span.device)
        embedded = self._embed(tokens) if len(tokens) else signals.span.new_empty(0, signals.span.shape[1])
        return Instruction(
            torch.arange(len(tokens)), len(tokens) - 1, request.text, embedded, lambda: [*request.pieces]
        )


def _filled(state: VisualState, image: ImageContext, count: int) -> VisualState:
    """A state with too few tokens, filled with the first tokens that were left out: the prompt has places for them."""
    if not bool((state.weights == 1).all()):
        raise CovistError(
            f"a reduction kept {state.count} of {count} tokens, which stand for others: none can be added"
        )
    whole = image.initial_state()
    chosen = torch.zeros(whole.count, dtype=torch.bool, device=state.indices.device)
    chosen[state.indices] = True
    missing = (~chosen).nonzero()[: count - state.count, 0]
    chosen[missing] = True
    return whole.restrict(chosen.nonzero()[:, 0])


def split_evenly(sizes: list[int], limit: int) -> list[slice]:
    """Split items into consecutive parts, each of a total size of at most `limit`, or of a single item."""
    parts: list[slice] = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            parts.append(slice(start, index))
            start, total = index, 0
        total += size
    return [*parts, slice(start, len(sizes))] if sizes else parts
