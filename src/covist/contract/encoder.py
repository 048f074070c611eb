"""What a method may request from the layers of a vision tower, in addition to the signals of every image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from covist.formulas.ops import round_half_up


@dataclass(frozen=True)
class EncoderRead:
    """Something to record while images are encoded; `ImageSignals.read` returns it as a list of tensors [N, ...].

    received: the attention that each token receives, as a mean over all queries of a tile and over heads, in three
              parts, [N] each: from all tokens, from the token itself, from the class token (zero without one)
    values:   values of the attention, [N, heads, w]
    states:   the input of the layer, then its output and the outputs of all later layers up to the one that feeds the
              projector, [N, v] each
    entry:    the input of the first layer. It is not in the order of content tokens: `ImageSignals.tower` holds it

    depth: of the layer, as an index or as a fraction of the tower's depth, capped at the layer that feeds the
        projector; None means that layer.
    without_class: the depth in a tower without a class token, if it differs.

    >>> class Growing(covist.Method):
    ...     name = "growing"
    ...     second_half = covist.EncoderRead("states", 0.5)
    ...     encoder_requests = (second_half,)
    ...     def select(self, image, count):
    ...         before, *_, after = image.signals.read(self.second_half)
    ...         return (after.norm(dim=-1) - before.norm(dim=-1)).topk(count).indices
    >>> Growing.second_half.layer(count=24, feeding=22, has_class=True)
    12
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


EncoderRequest = int | float | EncoderRead
"""What a method requests from the encoder: a number (a layer's index, or a fraction of the depth) stands for that
layer's class queries and keys."""


class LayerRun(NamedTuple):
    """The output of one encoder layer for some tokens, the class token first."""

    states: Tensor  # [n, v]
    attention: Tensor  # [heads, n] of the class token
    values: Tensor  # [heads, n, w]


@dataclass(frozen=True)
class Tower:
    """A vision tower with a class token, which a method can run layer by layer on any subset of its tokens."""

    entry: Tensor  # [tiles, 1 + patches, v] what enters the first layer, the class token first
    run: Callable[[int, Tensor], LayerRun]  # (layer, states [n, v])
    feature_layers: tuple[int, ...]  # whose outputs feed the projector, side by side
