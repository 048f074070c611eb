"""Attention through kernels without mask support: heads are widened while attending; the cache holds plain keys."""

from __future__ import annotations

from functools import lru_cache

import torch.nn.functional as F
from torch import Tensor

from covist.backends import Attended, attention_of
from covist.contract.method import AttentionRule
from covist.engine.attention.bias import Terms
from covist.engine.attention.interface import AttentionCall
from covist.engine.sequence.ledger import Ledger
from covist.formulas.attention import DistanceTable
from covist.formulas.cosine_series import CosineSeries, fit_series
from covist.formulas.wide_heads import COLUMNS, WideHeads, terms_in, widen


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
