"""From the signals of an image to the rows that enter the prompt."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.instruction import Instruction, TextSpace
from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.grid import Grid
from covist.state import VisualState
from covist.vllm.item import NOTHING_ASKED, ImageRequest
from covist.vllm.rows import image_rows


class ImageCompressor:
    """Reduces images to as many rows as they have placeholders."""

    def __init__(self, method: Method, decoder: Decoder, embed: Callable[[Tensor], Tensor]):
        self._method, self._decoder, self._embed = method, decoder, embed
        self.text_tower: TextSpace | None = None

    def rows(
        self,
        signals: ImageSignals,
        count: int,
        request: ImageRequest = NOTHING_ASKED,
        before: int = 0,
        grid: Tensor | None = None,
    ) -> Tensor:
        """[count and markers, d + side columns]; `before` and `grid` as for `image_rows`."""
        rows = signals.content_rows.to(signals.span.device)
        positions = rows if grid is None else grid[rows]
        context = ImageContext(signals, positions, self._read(request, signals), self._decoder)
        context.text_tower = self.text_tower
        state = self._method.begin(context, count).state
        if state.count < count:
            state = _filled(state, context, count)
        made = image_rows(signals, state, self._method, count, before, grid)
        expected = count + int((~signals.content).sum())
        if len(made) != expected:  # vLLM would silently truncate it
            raise CovistError(f"{self._method.name} kept {len(made)} rows of an image, but the prompt has {expected}")
        return made

    def _read(self, request: ImageRequest, signals: ImageSignals) -> Instruction:
        tokens = torch.tensor(request.tokens, dtype=torch.long, device=signals.span.device)
        embedded = self._embed(tokens) if len(tokens) else signals.span.new_empty(0, signals.span.shape[1])
        return Instruction(
            torch.arange(len(tokens)), len(tokens) - 1, request.text, lambda: embedded, lambda: [*request.pieces]
        )


def embedding_signals(span: Tensor, content: Tensor, width: int, frames: int = 1) -> ImageSignals:
    """What is known of an image without its tower: its rows [n, d] as the prompt receives them.

    content: which rows are no markers, [n]
    width: of an embedding; features for later layers follow it in a row
    frames: of a video, with equally many tokens each
    """
    embeddings, *levels = span.split(width, dim=-1)
    tokens = int(content.sum())

    def refuse(*given: Tensor) -> Tensor:
        raise CovistError("vLLM shows only the embeddings of this image")  # `require_readable` refuses such methods

    return ImageSignals(
        grid=Grid(((1, tokens // frames),) * frames, "frames" if frames > 1 else "aligned"),
        span=embeddings,
        content=content,
        read_attention=refuse,
        read_keys=refuse,
        read_hidden=refuse,
        pack=torch.arange(tokens, device=span.device),
        project=refuse,
        companions={level: features[content] for level, features in enumerate(levels, 1)},
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
