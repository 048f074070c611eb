"""Queries and keys of an encoder block without a class token: what the evidence of such an encoder is read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from covist.contract.decoder import Rotary
from covist.contract.family import Removable
from covist.families.hooks import Scratch
from covist.families.incoming import incoming_attention


@dataclass(frozen=True)
class PatchAttention:
    """What a block that sees a whole image, tile or frame computed for its patches, in the encoder's order."""

    queries: Tensor  # [patches, heads, w] before rotary
    keys: Tensor  # [patches, heads, w] before rotary
    rotary: Rotary | None = None  # cos and sin [patches, w]

    def of(self, patches: slice | Tensor) -> PatchAttention:
        rotary = None if self.rotary is None else (self.rotary[0][patches], self.rotary[1][patches])
        return PatchAttention(self.queries[patches], self.keys[patches], rotary)

    def split(self, count: int) -> list[PatchAttention]:
        """Equal parts one after the other: attention stays inside each, as inside the frames of a video."""
        length = len(self.keys) // count
        return [self.of(slice(first, first + length)) for first in range(0, count * length, length)]

    def incoming(self, asking: Sequence[Tensor]) -> Tensor:
        """Attention that each patch receives: [patches]."""
        return incoming_attention(self.queries, self.keys, self.rotary, asking)


class ProjectionTap:
    """Keeps the queries and keys of a block with separate projections, until they are taken.

    `query` and `key` name the modules of `attention` whose outputs they are: the projections, or the norms after them.
    """

    def __init__(self, attention: Any, heads: int, query: str = "q_proj", key: str = "k_proj"):
        self._heads, self._scratch = heads, Scratch()
        self.handles: list[Removable] = [
            attention.register_forward_pre_hook(self._keep_rotary, with_kwargs=True),
            getattr(attention, query).register_forward_hook(self._keep("queries")),
            getattr(attention, key).register_forward_hook(self._keep("keys")),
        ]

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._scratch.leave(name, output.detach().unflatten(-1, (self._heads, -1)))

        return hook

    def _keep_rotary(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self._scratch.leave("rotary", kwargs.get("position_embeddings"))

    def take(self) -> list[PatchAttention]:
        """One for each entry of the encoder's batch."""
        seen = self._scratch.take()
        return [
            PatchAttention(queries, keys, seen["rotary"])
            for queries, keys in zip(seen["queries"], seen["keys"], strict=True)
        ]
