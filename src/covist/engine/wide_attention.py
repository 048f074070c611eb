"""Attention through kernels without mask support: heads are widened while attending; the cache holds plain keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.engine.interface import CARRIER, Attended, Carrier
from covist.engine.ledger import Ledger
from covist.engine.mask import biased_keys, with_mean_weights
from covist.formulas.attention import DistanceTable
from covist.formulas.cosine_series import CosineSeries, fit_series
from covist.formulas.wide_heads import COLUMNS, WideHeads, terms_in, widen


def codec_of(table: DistanceTable | None) -> WideHeads:
    """The extra columns that carry the bias of layers with a distance table."""
    return WideHeads(CosineSeries.zero() if table is None else fit_series(table, terms_in(COLUMNS)))


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

    def __init__(
        self,
        ledger: Ledger,
        queries: int,
        rule: AttentionRule,
        codecs: Mapping[DistanceTable | None, WideHeads],
        prefill: bool,
    ):
        self._rule, self._codecs = rule, codecs
        positions = ledger.positions if ledger.positions.ndim == 3 else ledger.positions[..., None]
        in_use = prefill or rule.distance_in_decoding
        # [batch, queries, columns] and [batch, keys, columns]
        own = positions[:, -queries:]
        self._waves = {table: codec.query_waves(own, ledger.reach) for table, codec in codecs.items()}
        self._keys = {table: self._key_columns(table, ledger, positions, in_use) for table in codecs}
        self._first_keys: Tensor | None = None  # of layer 0, if it has its own
        if rule.uniform_first_layer and prefill:
            self._first_keys = self._key_columns(rule.distance(0), with_mean_weights(ledger), positions, True)

    def widen(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Queries and keys of a layer whose kernel multiplies their products by `scaling`."""
        table = self._rule.distance(layer)
        waves = self._waves[table].to(query.device)
        columns = self._codecs[table].query_columns(self._rule.scale[layer], waves, scaling)
        first = self._first_keys if layer == 0 else None
        return widen(query, columns), widen(key, (self._keys[table] if first is None else first)[:, None])

    def _key_columns(self, table: DistanceTable | None, ledger: Ledger, positions: Tensor, in_use: bool) -> Tensor:
        weights = ledger.log_weight if self._rule.weights else torch.zeros_like(ledger.log_weight)
        biased = biased_keys(ledger, self._rule).expand_as(weights) & (in_use and table is not None)
        return self._codecs[table].key_columns(weights, positions, biased, ledger.reach)
