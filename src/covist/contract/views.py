"""What a method may read: one image before the decoder, inside it, or in one of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from covist.contract.decoder import Decoder, Rotary
from covist.contract.instruction import Instruction, TextSpace
from covist.contract.signals import ImageSignals
from covist.grid import Grid
from covist.reduction import Reduction
from covist.schedule import Schedule
from covist.state import VisualState


@dataclass(eq=False)
class ImageContext:
    """One image on its way into the decoder, with everything that `Method.select` may read.

    signals: attention, keys, features and embeddings from the vision tower
    positions: rotary positions of the content tokens, [N] or [N, axes]
    instruction: the question about the image
    decoder: shape, projections and rotary frequencies of the text model
    text_tower: CLIP's text space, if there is one
    seconds: time that finding the count took before the reduction

    >>> class Loudest(covist.Method):
    ...     name = "loudest"
    ...     def select(self, image: covist.ImageContext, count):
    ...         return image.signals.embeddings.norm(dim=-1).topk(count).indices
    """

    signals: ImageSignals
    positions: Tensor
    instruction: Instruction
    decoder: Decoder
    text_tower: TextSpace | None = None
    seconds: float = 0.0

    @property
    def grid(self) -> Grid:
        return self.signals.grid

    def initial_state(self, affinity: Tensor | None = None, anchors: Tensor | None = None) -> VisualState:
        """The uncompressed state: every content token, with weight one."""
        signals = self.signals
        return VisualState.initial(signals.embeddings, self.positions, affinity, self.grid, anchors, signals.companions)

    @property
    def held(self) -> Reduction | None:
        """The state that was made before the prompt, if the image is one (`ImageSignals.owner`)."""
        if self.signals.owner is None:
            return None
        kept, assignment = self.signals.owner.unique(return_inverse=True)
        state = self.initial_state().restrict(kept).replace(weights=assignment.bincount().float())
        return Reduction(state, assignment)

    @cached_property
    def patch_text_features(self) -> Tensor | None:
        """Content tokens in CLIP's text space [N, p]; None without a text tower."""
        if self.text_tower is None or self.signals.text_space is None:
            return None
        return self.text_tower.project_patches(self.signals.text_space(self.signals.hidden))

    @cached_property
    def text_features(self) -> Tensor | None:
        """Instruction tokens in CLIP's text space [T, p] (BOS dropped, EOS last); None without tower or text."""
        if self.text_tower is None or not self.instruction.text:
            return None
        return self.text_tower.encode(self.instruction.text)


@dataclass(frozen=True)
class PixelView:
    """One image, or one video, on its way into the vision tower, with everything that `Method.rate_patches` may read.

    cells: the pixels that each token shows, [frames, rows, columns, values]; an image is one frame
    in_range: whether they are between 0 and 1. If the processor is not known, they are as it normalised them

    >>> class NotBlank(covist.Method):
    ...     name, rates_patches = "not-blank", True
    ...     def rate_patches(self, pixels: covist.PixelView):
    ...         scores = pixels.cells.std(-1)
    ...         scores[:, 0, 0] += 1  # something of every frame
    ...         return scores
    """

    cells: Tensor
    in_range: bool


Known = TypeVar("Known")


class PerImage(WeakKeyDictionary[ImageContext, Known]):
    """What a method knows about images until they are reduced; it goes with the image, and pickles leave it behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


@dataclass
class DecoderView:
    """One image inside the decoder, just before layer `depth`; rows are indices into the current sequence.

    >>> from covist.methods.inside import ScoreInside
    >>> class Attended(ScoreInside):
    ...     name, cuts = "attended", (16,)  # of 32 layers
    ...     def score(self, view: covist.DecoderView):
    ...         return view.attention(view.instruction_rows).mean((0, 1))[view.visual]
    >>> Attended().schedule(layers=32, budget=400, tokens=576).tokens_per_layer[15:17]
    (576, 224)
    """

    depth: int
    decoder: Decoder
    hidden: Tensor  # [n, d] the sample's hidden states that enter layer `depth`
    observed: Tensor  # [n, d] the hidden states that entered `observed_layer`
    observed_layer: int
    positions: Tensor  # [n] or [n, axes]
    rotary: Rotary | None  # cos and sin [n, head width]; None if the decoder does not rotate
    visual: Tensor  # [K] rows of the image's representatives
    text: Tensor  # [T] rows of the text tokens after the image
    text_embeddings: Tensor  # [T, d] their input embeddings before the first layer
    instruction_rows: Tensor  # [I]
    last_instruction_row: int
    signals: ImageSignals
    memory: Any = None  # what `Method.memory` made for this image in this prompt; the method owns it

    def queries(self, rows: Tensor, rotate: bool = True) -> Tensor:
        """Queries of `observed_layer` [heads, rows, head width]."""
        return self.decoder.queries(self.observed_layer, self.observed[rows], self._rotary(rows) if rotate else None)

    def keys(self, rows: Tensor | None = None, rotate: bool = True) -> Tensor:
        """Keys of `observed_layer` [kv heads, rows, head width]; of every token if `rows` is None."""
        rows = torch.arange(len(self.observed), device=self.observed.device) if rows is None else rows
        return self.decoder.keys(self.observed_layer, self.observed[rows], self._rotary(rows) if rotate else None)

    def values(self, rows: Tensor) -> Tensor:
        """Values of `observed_layer` [kv heads, rows, head width]."""
        return self.decoder.values(self.observed_layer, self.observed[rows])

    def attention(self, rows: Tensor) -> Tensor:
        """The plain causal attention of `observed_layer` for some queries [heads, rows, n], without covist's bias."""
        queries, keys = self.queries(rows), self.keys()
        keys = keys.repeat_interleave(len(queries) // len(keys), dim=0)
        logits = queries @ keys.transpose(1, 2) * self.decoder.scale(self.observed_layer)
        future = torch.arange(len(self.observed), device=rows.device)[None] > rows[:, None]
        return logits.masked_fill(future, float("-inf")).softmax(-1)

    def _rotary(self, rows: Tensor) -> Rotary | None:
        return None if self.rotary is None else (self.rotary[0][rows], self.rotary[1][rows])


@dataclass(frozen=True)
class BlockView:
    """One image in a block (the attention or the feed-forward) of a decoder layer that has just run in a prefill.

    >>> class Moved(covist.Method):
    ...     name, watches_blocks = "moved", True
    ...     def memory(self, image):
    ...         return image.positions.new_zeros(image.grid.size, dtype=torch.float32)
    ...     def see_block(self, memory, block: covist.BlockView):
    ...         memory[block.indices] += block.made.float().norm(dim=-1)
    """

    layer: int
    schedule: Schedule  # of the image
    indices: Tensor  # [K] which of the image's tokens are left
    given: Tensor  # [K, d] their input of the block, after the norm, on the layer's device
    made: Tensor  # [K, d] its output, before the residual
