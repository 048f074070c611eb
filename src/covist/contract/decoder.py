"""The parts of a frozen decoder that methods read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from covist.formulas.attention import DistanceTable

Rotary = tuple[Tensor, Tensor]
"""cos and sin, [tokens, rotary width] each, as the model lays them out."""


class Decoder(Protocol):
    """Shape, rotary frequencies, projections and head gains of a decoder-only text model.

    Not every layer can be read: `reads` tells which. A method may read only such layers; elsewhere gains are 1.
    """

    layers: int
    heads: int  # of every layer; 1 if layers differ, since gains then broadcast over the heads
    head_width: int  # of the widest head
    hidden: int

    @property
    def name(self) -> str:
        """The model's class, for messages."""

    def reads(self, layer: int) -> bool:
        """Whether queries, keys and values of a layer can be read as the layer computes them."""

    @property
    def unread(self) -> Mapping[int, str]:
        """The layers that cannot be read, or whose gains cannot, and why."""

    def frequencies(self, layer: int) -> Tensor | None:
        """RoPE frequencies of a layer after the model's scaling [head width / 2]; 0 for pairs that do not rotate.

        None if the layer does not rotate or cannot be read.
        """

    @property
    def distances(self) -> tuple[DistanceTable | None, ...]:
        """log(2 - D) of Eq. 9 for each layer; None where D is 1, since the layer does not rotate or cannot be read.

        Layers with equal frequencies share one table.
        """

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
        """Gains of Eq. 10, [layers, heads]; 1 where they cannot be read."""
