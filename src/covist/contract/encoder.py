"""What a method may ask of the layers of a vision tower, besides the signals that every image comes with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from covist.formulas.ops import round_half_up


@dataclass(frozen=True)
class EncoderRead:
    """One thing to keep while images are encoded; `ImageSignals.read` gives it as a list of tensors [N, ...].

    received: what patches attend to, as three shares of the mean over all queries of a tile and over heads, [N] each:
              from everywhere, from the token itself, from the class token (zero where there is none)
    values:   of the attention, [N, heads, w]
    states:   what enters the layer, then the output of it and of every later one until the layer that feeds the
              projector, [N, v] each
    entry:    what enters the first layer. It has no order of content tokens: `ImageSignals.tower` holds it

    depth: of the layer, as an index or as a fraction of the tower's depth; never beyond the layer that feeds the
        projector, which None stands for.
    without_class: the depth in a tower without a class token, where a method has another one for these.
    """

    what: Literal["received", "values", "states", "entry"]
    depth: int | float | None = None
    without_class: int | float | None = None

    def layer(self, count: int, feeding: int, has_class: bool) -> int:
        """The index of the layer in a tower of `count` layers, of which layer `feeding` feeds the projector."""
        depth = self.depth if has_class or self.without_class is None else self.without_class
        if depth is None:
            return feeding
        return min(round_half_up(depth * count) if isinstance(depth, float) else range(count)[depth], feeding)


EncoderWish = int | float | EncoderRead
"""What a method wants of the encoder: class queries and keys of a layer (its index, or a fraction of the depth), or a
read."""


class LayerRun(NamedTuple):
    """What one encoder layer made of some tokens, the class token first."""

    states: Tensor  # [n, v]
    attention: Tensor  # [heads, n] of the class token
    values: Tensor  # [heads, n, w]


@dataclass(frozen=True)
class Tower:
    """A vision tower with a class token, to be walked layer by layer on as many of its tokens as a method likes."""

    entry: Tensor  # [tiles, 1 + patches, v] what enters the first layer, the class token first
    run: Callable[[int, Tensor], LayerRun]  # (layer, states [n, v])
    feature_layers: tuple[int, ...]  # whose outputs feed the projector, side by side

    def on(self, device: torch.device) -> Tower:
        """The same tower with its entry on a device."""
        return replace(self, entry=self.entry.to(device))
