"""Attention through kernels without mask support: heads are widened while attending; the cache holds plain keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.engine.interface import CARRIER, Attended, Carrier
from covist.engine.ledger import Ledger
from covist.engine.mask import biased_keys, distance_of, with_mean_weights
from covist.formulas.cosine_series import CosineSeries, fit_series
from covist.formulas.wide_heads import COLUMNS, WideHeads, terms_in, widen


def codec_of(rule: AttentionRule) -> WideHeads:
    """The extra columns that carry the bias of a rule."""
    return WideHeads(CosineSeries.zero() if rule.distance is None else fit_series(rule.distance, terms_in(COLUMNS)))


class WideStage:
    """Attention of one stage for the queries of the current call, which are the last keys of the ledger.

    The kernel provides causality: its last query sees the last key. Padding is passed to it as a 2-D mask.
    """

    def __init__(self, ledger: Ledger, bias: WideBias | None):
        self._padding = ledger.valid if ledger.padded else None  # [batch, keys]
        self._bias = bias

    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments that make a layer attend with widened heads."""
        return {"attention_mask": None, CARRIER: partial(self._attend, layer)}

    def _attend(self, layer: int, own: Carrier, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Attended:
        # Flash attention mistakes gaps in the positions of a single prompt for borders of packed sequences.
        options.pop("position_ids", None)
        padding = None if self._padding is None else self._padding.to(query.device)
        if self._bias is None:
            return own(query, key, value, padding, **options)
        width = query.shape[-1]
        scaling = options.pop("scaling", None) or width**-0.5
        query, key = self._bias.widen(layer, query, key, scaling)
        wide_value = F.pad(value, (0, query.shape[-1] - width))
        output, weights = own(query, key, wide_value, padding, scaling=scaling, **options)
        return output[..., : value.shape[-1]], weights


class WideBias:
    """Eq. 9 of one stage as extra columns of queries and keys; layers share all but the gains."""

    def __init__(self, ledger: Ledger, queries: int, rule: AttentionRule, codec: WideHeads, prefill: bool):
        self._rule, self._codec = rule, codec
        positions = ledger.positions if ledger.positions.ndim == 3 else ledger.positions[..., None]
        self._waves = codec.query_waves(positions[:, -queries:], ledger.reach)  # [batch, queries, columns]
        distance = distance_of(rule, prefill) is not None
        self._keys = self._first_layer_keys = self._key_columns(ledger, positions, distance)  # [batch, keys, columns]
        if rule.uniform_first_layer and prefill:
            self._first_layer_keys = self._key_columns(with_mean_weights(ledger), positions, distance)
        if rule.layers_without_distance:
            self._weight_keys = self._key_columns(ledger, positions, distance=False)

    def widen(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Queries and keys of a layer whose kernel multiplies their products by `scaling`."""
        columns = self._codec.query_columns(self._rule.scale[layer], self._waves.to(query.device), scaling)
        keys = self._first_layer_keys if layer == 0 else self._keys
        if layer in self._rule.layers_without_distance:
            keys = self._weight_keys
        return widen(query, columns), widen(key, keys[:, None])

    def _key_columns(self, ledger: Ledger, positions: Tensor, distance: bool) -> Tensor:
        weights = ledger.log_weight if self._rule.weights else torch.zeros_like(ledger.log_weight)
        biased = biased_keys(ledger, self._rule).expand_as(weights) & distance
        return self._codec.key_columns(weights, positions, biased, ledger.reach)
