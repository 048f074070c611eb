"""The parts of a frozen decoder that methods read."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from covist.formulas.attention import DistanceTable

Rotary = tuple[Tensor, Tensor]
"""cos and sin, [tokens, rotary width] each, as the model lays them out."""


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
        """RoPE frequencies after the model's scaling [head width / 2]; 0 for pairs that do not rotate."""

    @property
    def distance_table(self) -> DistanceTable:
        """log(2 - D) of Eq. 9 for these frequencies."""

    @property
    def layers_without_positions(self) -> frozenset[int]:
        """Layers whose attention does not rotate: there D of Eq. 9 is 1."""

    def first_input(self, embeddings: Tensor) -> Tensor:
        """Embeddings as the first layer receives them; some decoders scale them on the way."""

    def queries(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[heads, tokens, head width] in float32 of hidden states [tokens, d], rotated if `rotary` is given."""

    def keys(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[kv heads, tokens, head width] in float32, rotated if `rotary` is given."""

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        """[kv heads, tokens, value width] in float32."""

    def rotate(self, layer: int, states: Tensor, rotary: Rotary) -> Tensor:
        """States [..., tokens, head width] as a layer rotates its queries and keys."""

    def scale(self, layer: int) -> float:
        """The factor of a layer's attention logits."""

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Hidden states [tokens, d] after the decoder's final norm."""

    def head_gains(self, gain_range: tuple[float, float]) -> Tensor:
        """Gains of Eq. 10 over all layers and heads, [layers, heads]."""
