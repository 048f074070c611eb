"""What a vision tower says about one image, in the order of its content tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from covist.grid import Grid, PartialGrid


@dataclass(frozen=True)
class EncoderLayer:
    """Class-token queries and keys [tiles, width] and patch keys [tiles, patches, width] of one encoder layer."""

    class_query: Tensor
    class_key: Tensor
    keys: Tensor
    heads: int

    def attention(self) -> Tensor:
        """Class-token attention per head [tiles, heads, patches], as mass over the patches alone."""
        return self._logits(self.keys).softmax(-1)

    def class_row(self) -> Tensor:
        """The same as the encoder has it: what the class token gives to itself is missing from each head's mass."""
        logits = torch.cat([self._logits(self.class_key[:, None]), self._logits(self.keys)], dim=-1)
        return logits.softmax(-1)[..., 1:]

    def _logits(self, keys: Tensor) -> Tensor:
        """Of the class token over some keys [tiles, n, width] -> [tiles, heads, n]."""
        query = self.class_query.float().unflatten(-1, (self.heads, -1))[..., None]  # [tiles, heads, head width, 1]
        keys = keys.float().unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (keys @ query).squeeze(-1) * query.shape[-2] ** -0.5


@dataclass
class ImageSignals:
    """Encoder signals of one image.

    `N` counts content tokens; `n` counts every token of the image span in the prompt, so `n > N` where a family
    inserts markers (newlines). Tensors that only some methods read are callables, evaluated once and on demand.
    """

    grid: Grid
    span: Tensor  # [n, d] the image's embeddings exactly as the prompt receives them
    content: Tensor  # [n] bool, False for markers
    read_attention: Callable[[], Tensor]  # -> [tiles, heads, patches], mass over the patches of a tile
    read_keys: Callable[[], Tensor]  # -> [N, k] descriptors before any rotary
    read_hidden: Callable[[], Tensor]  # -> [N, v] encoder features that feed the projector
    pack: Tensor  # [N] index of each content token in the flattened (tiles, patches)
    project: Callable[[Tensor], Tensor]  # encoder features [*, v] -> decoder embeddings [*, d]
    class_features: Tensor | None = None  # [tiles, v] class-token features; None without a class token
    text_space: Callable[[Tensor], Tensor] | None = None  # encoder features [*, v] -> input of CLIP's visual projection
    feeding: EncoderLayer | None = None  # the encoder layer that feeds the projector; None without a class token
    layers: dict[int, EncoderLayer] = field(default_factory=dict)  # further encoder layers that a method asked for
    companions: dict[int, Tensor] = field(default_factory=dict)
    """Decoder layer -> features [N, d] that the content tokens receive before that layer, next to the embeddings that
    they enter the decoder with (DeepStack)."""
    read_pixels: Callable[[], list[Tensor]] | None = None  # -> [3, h, w] per view, as the encoder saw it
    memo: dict[str, Any] = field(default_factory=dict)  # what a method wants to remember about this image

    @cached_property
    def attention(self) -> Tensor:
        """Per-head attention [tiles, heads, patches]: of the class token, or incoming where there is none."""
        return self.read_attention().float()

    @cached_property
    def keys(self) -> Tensor:
        """Descriptors [N, k]."""
        return self.read_keys().float()

    @cached_property
    def hidden(self) -> Tensor:
        """Encoder features [N, v]."""
        return self.read_hidden()

    @cached_property
    def embeddings(self) -> Tensor:
        """Projected embeddings of the content tokens [N, d]."""
        return self.span[self.content]

    def packed(self, per_patch: Tensor) -> Tensor:
        """Lay values per tile and patch [tiles, patches] out in content order [N]."""
        return per_patch.flatten()[self.pack]

    def restricted(self, visible: Tensor) -> ImageSignals:
        """What is left when only the content tokens `visible` [N] bool are seen: the others are no content any more."""
        kept = visible.nonzero()[:, 0]
        content = self.content.clone()
        content[self.content] = visible
        return replace(
            self,
            grid=PartialGrid.of(self.grid, kept.tolist()),
            content=content,
            read_attention=lambda: self.attention,
            read_keys=lambda: self.keys[kept],
            read_hidden=lambda: self.hidden[kept],
            pack=self.pack[kept],
            companions={layer: own[kept] for layer, own in self.companions.items()},
        )

    def belongs_to(self, embeddings: Tensor) -> bool:
        """Whether an image span of a prompt [n, d] holds this image's embeddings (probed on a few rows)."""
        if embeddings.shape[0] != self.span.shape[0]:
            return False
        probe = torch.linspace(0, embeddings.shape[0] - 1, min(8, embeddings.shape[0])).long()
        ours = self.span[probe.to(self.span.device)].to(embeddings.device, embeddings.dtype)
        return bool(torch.equal(embeddings[probe.to(embeddings.device)], ours))
