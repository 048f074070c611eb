"""Additive attention masks derived from a ledger: causality, padding and the bias of Eq. 9 in one tensor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.engine.interface import CARRIER, Attended, Carrier
from covist.engine.ledger import Ledger
from covist.formulas.attention import DistanceTable, attention_bias, log_contribution

BLOCKED = torch.finfo(torch.float32).min
ELEMENTS_AT_ONCE = 2**24
"""Largest mask that is made at once: 64 MiB in float32. A larger one is made for some queries at a time."""


class StageMask:
    """Masks of one stage for the `queries` tokens of the ledger before `end` (by default its end).

    Only the part that does not depend on the layer is kept, [batch, 1, queries, keys]; a layer's mask is one fused
    multiply-add that exists while the layer runs.
    """

    def __init__(
        self,
        ledger: Ledger,
        queries: int,
        rule: AttentionRule | None,
        backend: str,
        heads: int,
        prefill: bool,
        end: int | None = None,
    ):
        end = ledger.length if end is None else end
        self._rule = rule if ledger.reduced else None
        self._is_flex, self._heads = backend == "flex_attention", heads
        self._biases: dict[DistanceTable | None, Tensor] = {}
        self._first_bias: Tensor | None = None  # of layer 0, if it has its own
        if self._rule is not None:
            in_use = prefill or self._rule.distance_in_decoding
            for table in self._rule.tables:
                self._biases[table] = _bias(ledger, queries, end, self._rule, table if in_use else None)
            if self._rule.uniform_first_layer and prefill:
                own = self._rule.distance(0)
                self._first_bias = _bias(with_mean_weights(ledger), queries, end, self._rule, own)
        implicit = backend == "sdpa" and self._rule is None and is_plainly_causal(ledger, queries)
        self._blocked = None if implicit else _blocked(ledger, queries, end)

    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments of a layer that carry its mask, in the form its attention backend takes."""
        mask = self._blocked
        if self._rule is not None and mask is not None:
            first = self._first_bias if layer == 0 else None
            bias = self._biases[self._rule.distance(layer)] if first is None else first
            mask = attention_bias(self._rule.scale[layer], bias, mask)
        if mask is None:
            return {"attention_mask": None}
        mask = mask.to(like.device)
        if like.dtype != mask.dtype:  # a new tensor, in which the lowest float32 may have become infinite
            mask = mask.to(like.dtype).clamp_(min=torch.finfo(like.dtype).min)
        if self._is_flex:  # flex does not broadcast the heads of a bias, and crashes on float masks on the CPU
            return {"attention_mask": None, "position_bias": mask.expand(-1, self._heads, -1, -1)}
        return {"attention_mask": mask}


class ChunkedMask:
    """Masks of a stage for scaled dot product attention, made for `chunk` queries at a time while a layer attends.

    A mask differs per head, so a mask for all queries grows with heads x queries x keys. The queries of a chunk need
    only the keys up to their own.
    """

    def __init__(self, ledger: Ledger, queries: int, rule: AttentionRule | None, heads: int, prefill: bool, chunk: int):
        self._ledger = self._first_layer_ledger = ledger
        if rule is not None and rule.uniform_first_layer and prefill:
            self._first_layer_ledger = with_mean_weights(ledger)
            rule = replace(rule, uniform_first_layer=False)
        self._queries, self._chunk = queries, chunk
        # "eager" gives a mask even if sdpa needs none
        self._mask = partial(StageMask, rule=rule, backend="eager", heads=heads, prefill=prefill)

    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments that make a layer attend chunk by chunk."""
        return {"attention_mask": None, CARRIER: partial(self._attend, layer)}

    def _attend(self, layer: int, own: Carrier, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Attended:
        """`own` is sdpa's function, which would repeat grouped keys for every chunk; torch's is called instead."""
        arguments = {"scale": options.get("scaling"), "dropout_p": options.get("dropout", 0.0)}
        end, outputs = self._ledger.length - self._queries, []
        for part in query.split(self._chunk, 2):  # [batch, heads, chunk, width]
            end += part.shape[2]
            mask = self._mask_of(layer, part, end)
            outputs.append(_grouped_attention(part, key[:, :, :end], value[:, :, :end], mask, **arguments))
            del mask  # before the next one is made
        return torch.cat(outputs, 2).transpose(1, 2), None

    def _mask_of(self, layer: int, part: Tensor, end: int) -> Tensor:
        """The mask of the queries `part`, which end before key `end` of the ledger."""
        ledger = self._first_layer_ledger if layer == 0 else self._ledger
        return self._mask(ledger, part.shape[2], end=end).for_layer(layer, part)["attention_mask"]


def queries_at_once(ledger: Ledger, heads: int) -> int:
    """For how many queries one mask has an acceptable size."""
    return max(1, ELEMENTS_AT_ONCE // (len(ledger.valid) * heads * ledger.length))


def _grouped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: Any) -> Tensor:
    """Attention [batch, heads, queries, width]; heads that share keys become further queries of one head."""
    batch, heads, queries, width = query.shape
    group = heads // key.shape[1]
    mask = mask.expand(-1, max(group, mask.shape[1]), -1, -1).reshape(batch, -1, group * queries, key.shape[2])
    rows = query.reshape(batch, -1, group * queries, width)
    return F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, **arguments).view(*query.shape[:3], -1)


def is_plainly_causal(ledger: Ledger, queries: int) -> bool:
    """Whether sdpa's own causal rule replaces a mask: nothing is padded and the shapes fit."""
    return not ledger.padded and queries in (1, ledger.length)


def _blocked(ledger: Ledger, queries: int, end: int) -> Tensor:
    """[batch, 1, queries, end]: 0 where a query may attend, the lowest number elsewhere.

    A padded query may attend to itself, so that its row of the softmax stays finite.
    """
    key = torch.arange(end, device=ledger.valid.device)
    own = key[-queries:, None]
    visible = (key <= own) & ledger.valid[:, None, :end] | (key == own)
    return torch.zeros(visible.shape, dtype=torch.float32, device=key.device).masked_fill_(~visible, BLOCKED)[:, None]


def _bias(ledger: Ledger, queries: int, end: int, rule: AttentionRule, table: DistanceTable | None) -> Tensor:
    """[batch, 1, queries or 1, end]: the bias of Eq. 9 before the gains of layer and head."""
    factor: Tensor | float = 0.0
    if table is not None:
        factor = table.log_factor(ledger.positions[:, end - queries : end], ledger.positions[:, :end], ledger.reach)
        factor = factor.masked_fill_(~biased_keys(ledger, rule)[:, None, :end], 0.0)
    weights = ledger.log_weight if rule.weights else torch.zeros_like(ledger.log_weight)
    return log_contribution(weights[:, None, :end], factor)[:, None]


def biased_keys(ledger: Ledger, rule: AttentionRule) -> Tensor:
    """[batch, keys or 1] bool: keys that take the distance factor.

    "all" means all keys of a prompt with a reduced image; other prompts of the batch run as in the plain model.
    """
    return ledger.visual if rule.distance_keys == "visual" else ledger.visual.any(1, keepdim=True)


def with_mean_weights(ledger: Ledger) -> Ledger:
    """The ledger in which every visual key has the mean weight of its image."""
    result = torch.zeros_like(ledger.log_weight)
    for number in range(int(ledger.image.max()) + 1):
        member = ledger.image == number
        if member.any():
            mean = (ledger.log_weight.exp() * member).sum(1) / member.sum(1).clamp(min=1)
            result = torch.where(member, mean.clamp(min=1e-8).log()[:, None], result)
    return ledger.with_weights(result)
