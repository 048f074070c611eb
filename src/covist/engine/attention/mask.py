"""Attention of several tokens at once: the model's mask at the tokens that are left, and the bias of Eq. 9 on top.

A kernel without mask support takes the bias in widened heads; the cache holds plain keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.backends import Attended, attention_of, takes_no_mask
from covist.contract.method import AttentionRule
from covist.engine.attention.interface import AttentionCall, MaskRule
from covist.engine.sequence.ledger import Keys, Ledger
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable, attention_bias, log_contribution
from covist.formulas.cosine_series import CosineSeries, fit_series
from covist.formulas.wide_heads import COLUMNS, WideHeads, terms_in, widen

BLOCKED = torch.finfo(torch.float32).min
ELEMENTS_AT_ONCE = 2**24
"""Largest mask that is made at once: 64 MiB in float32. A larger one is made for some queries at a time."""


class StageAttention:
    """How the layers of one stage attend in one pass, whose `queries` tokens are the last keys of the ledger.

    The parts of a mask that layers share are kept, [batch, 1, queries, keys]; a layer's mask is one fused
    multiply-add that exists while the layer runs, unless its gains are those of all layers.
    """

    def __init__(self, ledger: Ledger, queries: int, rule: AttentionRule | None, samples: Tensor | None = None):
        """`samples` [batch]: which of the model's prompts a sample is, if they are not the same."""
        self.ledger, self._queries = ledger.flushed(), queries
        self._rule = rule if ledger.reduced else None
        self._samples = samples
        self._masks: dict[tuple[MaskRule, int], Tensor] = {}
        self._biases: dict[Terms, Tensor] = {}
        self._shared: dict[tuple[MaskRule, Terms, int, torch.device, torch.dtype], Tensor] = {}

    def attend(self, call: AttentionCall) -> Attended:
        """The attention of a layer."""
        keys = call.key.shape[2]
        if keys > self.ledger.length:
            raise CovistError(f"layer {call.layer} attends to keys of another layer, which saw other tokens")
        backend, whole = call.backend, keys == self.ledger.length
        if takes_no_mask(backend):
            if call.rule.is_causal and whole:
                return self._wide.attend(call)  # the kernel provides causality
            backend = "sdpa"  # a kernel that knows only causality would count the tokens that are left
        if backend == "sdpa" and self._rule is None and call.rule.is_causal and whole and self._is_plainly_causal:
            return call.under(None, backend)
        heads = 1 if self._rule is None else len(self._rule.gains(call.layer, call.query.device))
        chunk = max(1, ELEMENTS_AT_ONCE // (len(call.query) * heads * keys))
        if backend == "sdpa" and chunk < self._queries:
            return self._in_chunks(call, chunk)
        return call.under(self.mask(call, backend), backend)

    def mask(self, call: AttentionCall, backend: str, part: slice | None = None) -> Tensor:
        """[batch, heads or 1, queries, keys], for all queries of the pass or some of them."""
        keys = call.key.shape[2]
        if self._rule is None and backend == "sdpa":
            return self._shown(call.rule, keys, part).to(call.query.device)
        if self._rule is None:
            return as_additive(self._blocked(call.rule, keys, part), call.query)
        terms, query = Terms.of(self._rule, call.layer), call.query
        key = call.rule, terms, keys, query.device, query.dtype
        if key in self._shared and part is None:
            return self._shared[key]
        bias, blocked = self._bias(terms, part), self._blocked(call.rule, keys, part)
        mask = attention_bias(self._rule.gains(call.layer, bias.device), bias[..., -keys:], blocked)
        mask = as_additive(mask, query)
        if self._rule.is_uniform and part is None and call.rule.mask is None:
            self._shared[key] = mask
        return mask

    @cached_property
    def _wide(self) -> WideStage:
        return WideStage(self.ledger, self._queries, self._rule)

    @property
    def _is_plainly_causal(self) -> bool:
        """Whether sdpa's causal rule replaces a mask: nothing is padded and the shapes fit."""
        return not self.ledger.padded and self._queries in (1, self.ledger.length)

    def _in_chunks(self, call: AttentionCall, chunk: int) -> Attended:
        """A mask differs per head, so a mask for all queries would grow with heads x queries x keys."""
        arguments = {"scale": call.options.get("scaling"), "dropout_p": call.options.get("dropout", 0.0)}
        outputs, keys, bias = [], call.key.shape[2], call.options.get("position_bias")
        for first in range(0, self._queries, chunk):
            part = slice(first, min(first + chunk, self._queries))
            seen = keys - self._queries + part.stop if call.rule.is_causal else keys  # what these queries may see
            mask = self.mask(call, "eager", part)[..., :seen]
            if bias is not None:
                mask = mask + bias[:, :, part, :seen]
            states = (call.query[:, :, part], call.key[:, :, :seen], call.value[:, :, :seen])
            outputs.append(_grouped_attention(*states, mask, **arguments))
            del mask  # before the next one is made
        return torch.cat(outputs, 2).transpose(1, 2), None

    def _blocked(self, rule: MaskRule, keys: int, part: slice | None) -> Tensor:
        """[batch, 1, queries, keys]: 0 where a query may attend, the lowest number elsewhere; kept for all queries."""
        if part is None and (rule, keys) in self._masks:
            return self._masks[rule, keys]
        shown = self._shown(rule, keys, part)
        mask = torch.zeros(shown.shape, dtype=torch.float32, device=shown.device).masked_fill_(~shown, BLOCKED)
        if part is None and rule.mask is None:  # no other layer has a mask that one has made itself
            self._masks[rule, keys] = mask
        return mask

    def _shown(self, rule: MaskRule, keys: int, part: slice | None) -> Tensor:
        """[batch, heads or 1, queries, keys] bool: what the queries see of the last `keys` keys."""
        return visible(self.ledger, rule, self._samples, self._queries, keys, part or slice(None))

    def _bias(self, terms: Terms, part: slice | None) -> Tensor:
        """[batch, 1, queries or 1, keys]; kept unless it is that of some queries only."""
        if part is not None and terms.distance is not None:
            return self._bias_of(terms, part)
        if terms not in self._biases:
            self._biases[terms] = self._bias_of(terms, slice(None))
        return self._biases[terms]

    def _bias_of(self, terms: Terms, part: slice) -> Tensor:
        joined = self.ledger.joined
        queries = joined.positions[:, joined.count - self._queries :][:, part]
        return terms.bias(joined, queries, self.ledger.reach)


def visible(
    ledger: Ledger, rule: MaskRule, samples: Tensor | None, queries: int, keys: int, part: slice = slice(None)
) -> Tensor:
    """[batch, heads or 1, queries, keys] bool: what a part of the last `queries` tokens sees of the last keys."""
    rows, valid = ledger.last(keys)
    samples = torch.arange(len(rows), device=rows.device) if samples is None else samples
    asking = slice(keys - queries, keys)
    seen = rule.at(samples, rows[:, asking][:, part], rows, part) & valid[:, None, None]
    if queries > 1 and not ledger.padded:
        return seen
    # A padded query sees itself, so that its row of the softmax stays finite. Of a single token, nobody has read it.
    column = torch.arange(keys, device=rows.device)
    own = column == column[asking][part, None]
    return seen | (own & ~valid[:, asking][:, part, None])[:, None]


def as_additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask in float32 on the device and in the dtype of `like`."""
    mask = mask.to(like.device)
    if like.dtype == mask.dtype:
        return mask
    # a new tensor, in which the lowest float32 may have become infinite
    return mask.to(like.dtype).clamp_(min=torch.finfo(like.dtype).min)


def _grouped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **arguments: float | None) -> Tensor:
    """Attention [batch, heads, queries, width]; heads that share keys become further queries of one head."""
    batch, heads, queries, width = query.shape
    group = heads // key.shape[1]
    mask = mask.expand(-1, max(group, mask.shape[1]), -1, -1).reshape(batch, -1, group * queries, key.shape[2])
    rows = query.reshape(batch, -1, group * queries, width)
    options: dict = arguments
    return F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, **options).view(*query.shape[:3], -1)


# -- the bias of Eq. 9 before the gains of layer and head --------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """Which terms of Eq. 9 a layer adds; layers with equal terms differ only in their gains."""

    weights: bool
    mean_weights: bool
    distance: DistanceTable | None
    all_keys: bool  # whether text takes the distance factor, too

    @classmethod
    def of(cls, rule: AttentionRule, layer: int) -> Terms:
        distance = None if rule.distances is None else rule.distances[layer]
        return cls(rule.weights, layer in rule.mean_weights, distance, rule.distance_keys == "all")

    def log_weights(self, keys: Keys) -> Tensor:
        """[batch, keys]: log m as the layer takes it."""
        if not self.weights:
            return torch.zeros_like(keys.log_weight)
        return mean_log_weights(keys) if self.mean_weights else keys.log_weight

    def takes_distance(self, keys: Keys) -> Tensor:
        """[batch, keys] bool: keys that take the distance factor.

        If all keys do, these are the keys of a prompt with a reduced image; other prompts run as in the plain model.
        """
        return keys.visual.any(1, keepdim=True).expand_as(keys.visual) if self.all_keys else keys.visual

    def bias(self, keys: Keys, queries: Tensor, reach: int) -> Tensor:
        """[batch, 1, queries or 1, keys] for queries at positions [batch, queries(, axes)]; no distance is beyond
        `reach`."""
        factor: Tensor | float = 0.0
        if self.distance is not None:
            factor = self.distance.log_factor(queries, keys.positions, reach)
            factor = factor.masked_fill_(~self.takes_distance(keys)[:, None], 0.0)
        return log_contribution(self.log_weights(keys)[:, None], factor)[:, None]


def mean_log_weights(keys: Keys) -> Tensor:
    """[batch, keys]: log of the mean weight of the image that a key belongs to, 0 for text."""
    result = torch.zeros_like(keys.log_weight)
    for number in range(int(keys.image.max()) + 1):
        member = keys.image == number
        mean = (keys.log_weight.exp() * member).sum(1) / member.sum(1).clamp(min=1)
        result = torch.where(member, mean.clamp(min=1e-8).log()[:, None], result)
    return result


# -- kernels without mask support --------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def codec_of(distance: DistanceTable | None) -> WideHeads:
    """The extra columns that carry a bias with this distance factor."""
    return WideHeads(CosineSeries.zero() if distance is None else fit_series(distance, terms_in(COLUMNS)))


class WideStage:
    """Attention of one stage for the `queries` tokens of a pass, which are the last keys of the ledger.

    The kernel provides causality: its last query sees the last key. Padding is passed to it as a 2-D mask.
    """

    def __init__(self, ledger: Ledger, queries: int, rule: AttentionRule | None):
        self._ledger, self._queries, self._rule = ledger, queries, rule
        self._columns: dict[Terms, tuple[Tensor, Tensor]] = {}

    def attend(self, call: AttentionCall) -> Attended:
        """The attention of a layer with widened heads."""
        # Flash attention mistakes gaps in the positions of a single prompt for borders of packed sequences.
        options = {name: value for name, value in call.options.items() if name not in ("position_ids", "scaling")}
        kernel, query, key, value = attention_of(call.module, call.backend), call.query, call.key, call.value
        padding = self._ledger.joined.valid.to(query.device) if self._ledger.padded else None  # [batch, keys]
        width = query.shape[-1]
        scaling = call.options.get("scaling") or width**-0.5
        if self._rule is None:
            return kernel(query, key, value, padding, scaling=scaling, **options)
        query, key = self.widen(call.layer, query, key, scaling)
        output, weights = kernel(
            query, key, F.pad(value, (0, query.shape[-1] - width)), padding, scaling=scaling, **options
        )
        return output[..., : value.shape[-1]], weights

    def widen(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Queries and keys of a layer, whose kernel multiplies their products by `scaling`, with the bias of Eq. 9."""
        assert self._rule is not None, "without a rule there is no bias"
        terms = Terms.of(self._rule, layer)
        waves, keys = self._of_terms(terms)
        columns = codec_of(terms.distance).query_columns(self._rule.scale[layer], waves.to(query.device), scaling)
        return widen(query, columns), widen(key, keys[:, None])

    def _of_terms(self, terms: Terms) -> tuple[Tensor, Tensor]:
        """Waves of the queries and columns of the keys, [batch, tokens, columns] each; layers share them."""
        if terms not in self._columns:
            keys, reach, codec = self._ledger.joined, self._ledger.reach, codec_of(terms.distance)
            positions = keys.positions if keys.positions.ndim == 3 else keys.positions[..., None]
            waves = codec.query_waves(positions[:, -self._queries :], reach)
            takes = terms.takes_distance(keys) & (terms.distance is not None)
            self._columns[terms] = waves, codec.key_columns(terms.log_weights(keys), positions, takes, reach)
        return self._columns[terms]
