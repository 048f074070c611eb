"""Additive attention masks derived from a ledger: causality, padding and the bias of Eq. 9 in one tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.engine.ledger import Ledger
from covist.formulas.attention import attention_bias, log_contribution

BLOCKED = torch.finfo(torch.float32).min


class StageMask:
    """Masks of one stage for the queries of the current call, which are the last `queries` keys of the ledger.

    Only the part that does not depend on the layer is kept, [batch, 1, queries, keys]; a layer's mask is one fused
    multiply-add that lives as long as the layer runs.
    """

    def __init__(
        self, ledger: Ledger, queries: int, rule: AttentionRule | None, backend: str, heads: int, prefill: bool
    ):
        self._rule = rule if ledger.reduced else None
        self._is_flex, self._heads = backend == "flex_attention", heads
        self._bias = self._first_layer_bias = None
        if self._rule is not None:
            self._bias = self._first_layer_bias = _bias(ledger, queries, self._rule, prefill)
            if self._rule.uniform_first_layer and prefill:
                self._first_layer_bias = _bias(ledger, queries, self._rule, prefill, uniform=True)
        # sdpa's own causal rule says the same when nothing is biased or padded and the shapes line up
        implicit = backend == "sdpa" and self._rule is None and not ledger.padded and queries in (1, ledger.length)
        self._blocked = None if implicit else _blocked(ledger, queries)

    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments of a layer that carry its mask, in the form its attention backend takes."""
        mask = self._blocked
        if self._rule is not None:
            bias = self._first_layer_bias if layer == 0 else self._bias
            mask = attention_bias(self._rule.scale[layer], bias, self._blocked)
        if mask is not None:
            mask = mask.to(like.device)
            if like.dtype != mask.dtype:  # a new tensor, in which the lowest float32 may have become infinite
                mask = mask.to(like.dtype).clamp_(min=torch.finfo(like.dtype).min)
        if self._is_flex:  # it indexes the heads of a bias without broadcasting, and crashes on float masks on the CPU
            return {"attention_mask": None, "position_bias": mask.expand(-1, self._heads, -1, -1)}
        return {"attention_mask": mask}


def _blocked(ledger: Ledger, queries: int) -> Tensor:
    """[batch, 1, queries, keys]: 0 where a query may look, the lowest number elsewhere.

    A padded query may look at itself, so that its row of the softmax stays finite.
    """
    key = torch.arange(ledger.length, device=ledger.valid.device)
    own = key[-queries:, None]
    visible = (key <= own) & ledger.valid[:, None] | (key == own)
    return torch.zeros(visible.shape, dtype=torch.float32, device=key.device).masked_fill_(~visible, BLOCKED)[:, None]


def _bias(ledger: Ledger, queries: int, rule: AttentionRule, prefill: bool, uniform: bool = False) -> Tensor:
    """[batch, 1, queries or 1, keys]: the contributions of Eq. 9, before the gains of layer and head."""
    factor: Tensor | float = 0.0
    if rule.distance is not None and (prefill or rule.distance_in_decoding):
        factor = rule.distance.log_factor(ledger.positions[:, -queries:], ledger.positions, ledger.reach)
        # "all" means all keys of a prompt with a reduced image; any other prompt of the batch is the plain model's
        biased = ledger.visual if rule.distance_keys == "visual" else ledger.visual.any(1, keepdim=True)
        factor = factor.masked_fill_(~biased[:, None], 0.0)
    weights = torch.zeros_like(ledger.log_weight)
    if rule.weights:
        weights = _mean_log_weight(ledger) if uniform else ledger.log_weight
    return log_contribution(weights[:, None], factor)[:, None]


def _mean_log_weight(ledger: Ledger) -> Tensor:
    """[batch, keys]: for each visual key the log of the mean weight of its image."""
    result = torch.zeros_like(ledger.log_weight)
    for number in range(int(ledger.image.max()) + 1):
        member = ledger.image == number
        if member.any():
            mean = (ledger.log_weight.exp() * member).sum(1) / member.sum(1).clamp(min=1)
            result = torch.where(member, mean.clamp(min=1e-8).log()[:, None], result)
    return result
