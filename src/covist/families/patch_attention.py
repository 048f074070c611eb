"""Queries, keys and values of an encoder block's patches, from which the evidence of an encoder is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.decoder import Rotary
from covist.contract.family import Removable
from covist.families.hooks import Scratch
from covist.families.incoming import attention_shares, incoming_attention

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


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
    shown: Tensor | None = None  # [patches] bool, False for padding, which neither attends nor receives

    def of(self, patches: slice | Tensor) -> PatchAttention:
        rotary = None if self.rotary is None else (self.rotary[0][patches], self.rotary[1][patches])
        values, turned, shown = (
            None if one is None else one[patches] for one in (self.values, self.turned_keys, self.shown)
        )
        return PatchAttention(self.queries[patches], self.keys[patches], rotary, values, turned, shown)

    def without_padding(self) -> PatchAttention:
        return self if self.shown is None else replace(self.of(self.shown.nonzero().squeeze(1)), shown=None)

    def incoming(self, query_patches: Sequence[Tensor]) -> Tensor:
        """Attention that each patch receives: [patches]. With padding, all that is shown are query patches."""
        if self.shown is not None:
            return self._among_shown(lambda shown, every: shown.incoming(every)[None])[0]
        return incoming_attention(self.queries, self._attended, self.rotary, query_patches)

    def shares(self, query_patches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The same, and the part of it that each patch receives from itself: [patches] each."""
        if self.shown is not None:
            received, from_itself = self._among_shown(lambda shown, every: torch.stack(shown.shares(every)))
            return received, from_itself
        return attention_shares(self.queries, self._attended, self.rotary, query_patches)

    def _among_shown(self, read: Callable[[PatchAttention, list[Tensor]], Tensor]) -> Tensor:
        """What `read` says of the patches that are not padding, [values, patches]; zeros for padding."""
        assert self.shown is not None, "there is padding"
        plain = self.without_padding()
        seen = read(plain, [torch.arange(len(plain.keys), device=plain.keys.device)])
        return seen.new_zeros(len(seen), len(self.keys)).index_copy(1, self.shown.nonzero().squeeze(1), seen)

    @property
    def _attended(self) -> Tensor:
        return self.keys if self.turned_keys is None else self.turned_keys


class ProjectionTap:
    """Keeps queries, keys and values of a block with separate projections and no rotary until they are taken.

    Nothing is kept while `is_requested` returns False.
    """

    def __init__(self, attention: Any, is_requested: Callable[[], bool] | None = None):
        self._heads, self._scratch = attention.num_heads, Scratch(is_requested)
        self.handles: list[Removable] = [
            getattr(attention, name).register_forward_hook(partial(self._keep, name)) for name in PROJECTIONS
        ]

    def _keep(self, name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._scratch.leave(name, output.detach().unflatten(-1, (self._heads, -1)))

    def take(self) -> list[PatchAttention]:
        """One for each entry of the encoder's batch."""
        left = self._scratch.take()
        entries = zip(*(left[name] for name in PROJECTIONS), strict=True)
        return [PatchAttention(queries, keys, values=values) for queries, keys, values in entries]
