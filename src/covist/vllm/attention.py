"""Eq. 9 in vLLM: heads with a few extra dimensions, computed once per step and shared by all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.errors import CovistError
from covist.formulas.cosine_series import CosineSeries, fit_series
from covist.formulas.wide_heads import COLUMNS, WideHeads, terms_in, widen
from covist.vllm.rows import Side
from covist.vllm.settings import COST, WITHOUT_WEIGHTS

MOST_COLUMNS = 256
"""The most extra dimensions: every cached token needs space for them."""


class StepColumns:
    """The columns of all tokens of a step, at fixed addresses: graphs and compiled layers read them in place."""

    def __init__(self, rule: AttentionRule, columns: int, tokens: int, reach: int, device: torch.device):
        distance = rule.distance(0)  # of every layer (`require_served_rule`)
        series = CosineSeries.zero() if distance is None else fit_series(distance, terms_in(columns))
        self.codec = WideHeads(series, columns)
        self._rule, self._has_distance, self._reach = rule, distance is not None, reach
        self.queries = torch.zeros(tokens, columns, dtype=torch.float32, device=device)
        self.keys = torch.zeros(tokens, columns, dtype=torch.float32, device=device)

    def write(self, positions: Tensor, side: Side) -> None:
        """Write the columns of this step's tokens, at positions [n, axes]."""
        weights = side.log_weight if self._rule.weights else torch.zeros_like(side.log_weight)
        biased = side.visual if self._has_distance else torch.zeros_like(side.visual)
        count = len(positions)
        self.queries[:count] = self.codec.query_waves(positions, self._reach)
        self.keys[:count] = self.codec.key_columns(weights, positions, biased, self._reach)


class WideForward:
    """A mixin before vLLM's attention layer, whose heads are wider than the model's: widens queries and keys."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    step: StepColumns
    scale: Tensor  # of this rank's heads
    scaling: float

    def forward(self, query: Tensor, key: Tensor | None, value: Tensor | None, *unused: Any, **options: Any) -> Tensor:
        """[n, heads x width] each, with the heads of keys and values; those of a shared cache are None."""
        parent: Any = super()
        count, further = query.shape[0], self.step.codec.columns
        own = self.step.codec.query_columns(self.scale, self.step.queries[:count], self.scaling).transpose(0, 1)
        query = widen(query.reshape(count, self.num_heads, -1), own)
        if key is not None:
            key = widen(key.reshape(count, self.num_kv_heads, -1), self.step.keys[:count, None]).flatten(1)
        narrow = self.head_size - further if self.head_size_v == self.head_size else self.head_size_v
        if value is not None:
            value = value.reshape(count, self.num_kv_heads, -1)
            value = F.pad(value, (0, self.head_size_v - value.shape[-1])).flatten(1)
        output = parent.forward(query.flatten(1), key, value, **options)
        return output.view(count, self.num_heads, -1)[..., :narrow].flatten(1)


def columns_for(attentions: Sequence[Any], wanted: int | None) -> int:
    """How many dimensions to add to the heads of all layers, so that their backends support them."""
    choices = range(COLUMNS, MOST_COLUMNS + 1, COLUMNS) if wanted is None else [wanted]
    refusing: Any = None
    for columns in choices:
        fits = [one.attn_backend.supports_head_size(one.head_size + columns) for one in attentions]
        refusing = next((one for one, fit in zip(attentions, fits, strict=True) if not fit), None)
        if refusing is None:
            return columns
    width, backend = refusing.head_size, refusing.attn_backend
    sizes = ", ".join(map(str, backend.get_supported_head_sizes())) or "other sizes"
    raise CovistError(
        f"vLLM: {backend.get_name()} does not support head size {width + choices[0]} ({width} and the bias), only "
        f"{sizes}; set columns accordingly, or use {WITHOUT_WEIGHTS}, which leaves out the weights, {COST}"
    )


def extend_rotary(rotary: Any, positions: int) -> None:
    """Extend a rotary table to `positions`: kept positions reach further than the number of tokens."""
    table = rotary.cos_sin_cache
    if len(table) >= positions:
        return
    rotary.max_position_embeddings = positions
    longer = rotary._compute_cos_sin_cache().to(table)
    if not torch.equal(longer[: len(table)], table):
        raise CovistError(
            f"vLLM: {type(rotary).__name__} cannot be extended to {positions} positions; choose positions=reindex or a "
            "smaller --max-model-len"
        )
    rotary.cos_sin_cache = longer
