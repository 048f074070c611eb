"""Masks of a decoding step: one query per sample, which is the last key of the ledger.

What does not change between steps is prepared once and kept in the ledger. A step then costs a few operations for all
layers together and no read from the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from covist.contract.method import AttentionRule
from covist.engine.decoder import FrozenDecoder
from covist.engine.ledger import Ledger
from covist.formulas.attention import log_contribution

MASK_ELEMENTS = 1 << 24
"""Most mask elements that exist at a time (64 MiB in float32): the layers of a stage are grouped accordingly."""


@dataclass(frozen=True)
class _Prepared:
    """The joined keys of a ledger as a step reads them."""

    blocked: Tensor  # [batch, 1, 1, keys] 0 where a query may attend, the lowest number elsewhere
    visual: Tensor  # [batch, 1, keys] 1 for visual keys, 0 elsewhere
    log_weight: Tensor  # [batch, 1, keys]
    scale: Tensor  # [layers of the stage, 1, heads, 1, 1]; empty without a rule
    own: Tensor  # [batch, 1, 1, 1] zero: a query attends to itself, even if it is padding


class StepMask:
    """Masks for the layers of one stage, in the dtype of the hidden states."""

    def __init__(
        self,
        ledger: Ledger,
        query: Tensor,
        rule: AttentionRule | None,
        layers: range,
        decoder: FrozenDecoder,
        dtype: torch.dtype,
    ):
        """`query` [batch, 1(, axes)] are the positions of the step's tokens, which the ledger already holds."""
        self._ledger, self._layers, self._dtype = ledger, layers, dtype
        self._rule = rule if ledger.reduced else None
        self._heads, backend = decoder.heads, decoder.check_backend()
        self._is_flex = backend == "flex_attention"
        self._group, self._masks = 0, dict[int, tuple[Tensor, ...]]()  # layers per group, masks of the current one
        self._blocked: Tensor | None = None
        if self._rule is None and backend == "sdpa" and not ledger.padded:
            return  # without a mask, sdpa attends to everything
        self._prepared = self._prepare()
        self._blocked = self._all_blocked()
        if self._rule is not None:
            self._bias = pad(self._contribution(self._rule, query)[:, None], (0, ledger.waiting))
            self._group = max(1, MASK_ELEMENTS // (self._blocked.numel() * self._heads))

    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments of a layer that carry its mask, in the form its attention backend takes."""
        if self._blocked is None:
            return {"attention_mask": None}
        # [batch, heads or 1, 1, keys]
        mask = self._biased(layer, self._blocked) if self._group else self._blocked.to(self._dtype)
        mask = mask.to(like.device)
        if self._is_flex:
            return {"attention_mask": None, "position_bias": mask.expand(-1, self._heads, -1, -1)}
        return {"attention_mask": mask}

    def _biased(self, layer: int, blocked: Tensor) -> Tensor:
        group, place = divmod(layer - self._layers.start, self._group)
        if group not in self._masks:
            scale = self._prepared.scale
            if len(scale) > self._group:
                scale = scale[group * self._group : (group + 1) * self._group]
            self._masks = {group: torch.addcmul(blocked, self._bias, scale).to(self._dtype).unbind(0)}
        return self._masks[group][place]

    def _prepare(self) -> _Prepared:
        ledger = self._ledger
        if isinstance(ledger.prepared, _Prepared):
            return ledger.prepared
        keys = ledger.joined
        lowest = torch.finfo(self._dtype).min  # survives the conversion that follows
        blocked = torch.zeros(keys.valid.shape, dtype=torch.float32, device=keys.valid.device)
        scale = blocked.new_empty(0)
        if self._rule is not None:
            own = self._rule.scale[self._layers.start : self._layers.stop]
            scale = own.to(blocked.device)[:, None, :, None, None]
        ledger.prepared = prepared = _Prepared(
            blocked=blocked.masked_fill_(~keys.valid, lowest)[:, None, None],
            visual=(keys.image >= 0).float()[:, None],
            log_weight=keys.log_weight[:, None],
            scale=scale,
            own=blocked.new_zeros(len(blocked), 1, 1, 1),
        )
        return prepared

    def _all_blocked(self) -> Tensor:
        """[batch, 1, 1, keys]: the joined keys, the text keys since, and the query's own."""
        ledger, prepared = self._ledger, self._prepared
        waiting = ledger.waiting
        if waiting == 1 or ledger.mask is None:
            return pad(prepared.blocked, (0, waiting))
        hidden = ledger.mask[:, None, None, -waiting:-1].to(prepared.blocked.device) == 0
        return torch.cat([prepared.blocked, hidden * torch.finfo(self._dtype).min, prepared.own], -1)

    def _contribution(self, rule: AttentionRule, query: Tensor) -> Tensor:
        """[batch, 1, joined keys]: Eq. 9 before the gains; text keys, and so all keys fed since, have no bias."""
        prepared = self._prepared
        weights = prepared.log_weight if rule.weights else torch.zeros_like(prepared.log_weight)
        table = rule.distance(self._layers.start) if rule.distance_in_decoding else None
        if table is None:
            return weights
        factor = table.log_factor(query, self._ledger.joined.positions, self._ledger.reach)
        return log_contribution(weights, factor * prepared.visual)
