"""A frozen decoder, as far as methods read it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from covist.formulas.attention import DistanceTable

Rotary = tuple[Tensor, Tensor]
"""cos and sin, [tokens, head width] each."""


class Decoder(Protocol):
    """Shape, rotary frequencies, projections and head gains of a decoder-only text model."""

    layers: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    intermediate: int

    @property
    def inverse_frequencies(self) -> Tensor:
        """RoPE frequencies after the model's scaling, [head width / 2]."""

    @property
    def distance_table(self) -> DistanceTable:
        """log(2 - D) of Eq. 9 for these frequencies."""

    def queries(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[heads, tokens, head width] in float32 of hidden states [tokens, d], rotated if `rotary` is given."""

    def keys(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[kv heads, tokens, head width] in float32, rotated if `rotary` is given."""

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        """[kv heads, tokens, head width] in float32."""

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Hidden states [tokens, d] after the norm that ends the decoder."""

    def head_gains(self, gain_range: tuple[float, float]) -> Tensor:
        """Gains of Eq. 10 over all layers and heads, [layers, heads]."""
