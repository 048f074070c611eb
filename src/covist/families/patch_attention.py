"""Queries, keys and values of an encoder block's patches, from which the evidence of an encoder is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from covist.contract.decoder import Rotary
from covist.contract.family import Removable
from covist.families.hooks import Scratch
from covist.families.incoming import attention_shares, incoming_attention


@dataclass(frozen=True)
class PatchAttention:
    """What a block computed for the patches of a whole image, tile or frame, in the encoder's order.

    If `turned_keys` are known, `queries` are turned too, and there is no `rotary`.
    """

    queries: Tensor  # [patches, heads, w] before rotary
    keys: Tensor  # [patches, heads, w] before rotary
    rotary: Rotary | None = None  # cos and sin [patches, w]
    values: Tensor | None = None  # [patches, heads, w], if requested
    turned_keys: Tensor | None = None  # [patches, heads, w] after rotary, as the attention received them

    def of(self, patches: slice | Tensor) -> PatchAttention:
        rotary = None if self.rotary is None else (self.rotary[0][patches], self.rotary[1][patches])
        values, turned = (None if one is None else one[patches] for one in (self.values, self.turned_keys))
        return PatchAttention(self.queries[patches], self.keys[patches], rotary, values, turned)

    def split(self, count: int) -> list[PatchAttention]:
        """Equal consecutive parts, each of which attends only within itself, like the frames of a video."""
        length = len(self.keys) // count
        return [self.of(slice(first, first + length)) for first in range(0, count * length, length)]

    def incoming(self, query_patches: Sequence[Tensor]) -> Tensor:
        """Attention that each patch receives: [patches]."""
        return incoming_attention(self.queries, self._attended, self.rotary, query_patches)

    def shares(self, query_patches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The same, and the part of it that each patch receives from itself: [patches] each."""
        return attention_shares(self.queries, self._attended, self.rotary, query_patches)

    @property
    def _attended(self) -> Tensor:
        return self.keys if self.turned_keys is None else self.turned_keys


class ProjectionTap:
    """Keeps the queries and keys of a block with separate projections until they are taken.

    `query`, `key` and `value` name the modules of `attention` whose outputs to keep: the projections, or the norms
    after them. Values are kept only if `value` is given; nothing is kept while `is_requested` returns False.
    """

    def __init__(
        self,
        attention: Any,
        heads: int,
        query: str = "q_proj",
        key: str = "k_proj",
        value: str | None = None,
        is_requested: Callable[[], bool] | None = None,
    ):
        self._heads, self._scratch = heads, Scratch(is_requested)
        parts = {"queries": query, "keys": key, **({} if value is None else {"values": value})}
        self.handles: list[Removable] = [
            attention.register_forward_pre_hook(self._keep_rotary, with_kwargs=True),
            *(getattr(attention, name).register_forward_hook(self._keep(part)) for part, name in parts.items()),
        ]

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._scratch.leave(name, output.detach().unflatten(-1, (self._heads, -1)))

        return hook

    def _keep_rotary(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self._scratch.leave("rotary", kwargs.get("position_embeddings"))

    def take(self) -> list[PatchAttention]:
        """One for each entry of the encoder's batch."""
        left = self._scratch.take()
        values = left.get("values", [None] * len(left["keys"]))
        return [
            PatchAttention(queries, keys, left["rotary"], entry_values)
            for queries, keys, entry_values in zip(left["queries"], left["keys"], values, strict=True)
        ]
