"""Eq. 9 in vLLM: heads with a few extra dimensions, computed once per step and shared by all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covist.contract.method import AttentionRule
from covist.errors import CovistError
from covist.formulas.cosine_series import CosineSeries, fit_series
from covist.formulas.wide_heads import COLUMNS, WideHeads, terms_in, widen
from covist.vllm.rows import Side

if TYPE_CHECKING:
    from vllm.config import VllmConfig

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


class WideAttention(nn.Module):
    """Replaces a layer's `attn`: widens queries and keys, and trims the output."""

    scale: Tensor

    def __init__(self, attention: Any, step: StepColumns, vllm_config: VllmConfig):
        super().__init__()
        self._heads, self._kv_heads, self._width = attention.num_heads, attention.num_kv_heads, attention.head_size
        self._step, self.scaling = step, attention.impl.scale
        # This rank's heads; the gains are known once the weights are loaded.
        self.register_buffer("scale", torch.ones(self._heads, dtype=torch.float32), persistent=False)
        self.inner = wider_layer(attention, step.codec.columns, vllm_config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[n, heads x width] each, with the heads of keys and values."""
        count, further = query.shape[0], self._step.codec.columns
        waves, keys = self._step.queries[:count], self._step.keys[:count]
        own = self._step.codec.query_columns(self.scale, waves, self.scaling).transpose(0, 1)  # [n, heads, columns]
        query = widen(query.view(count, self._heads, self._width), own)
        key = widen(key.view(count, self._kv_heads, self._width), keys[:, None])
        value = F.pad(value.view(count, self._kv_heads, self._width), (0, further))
        output = self.inner(query.flatten(1), key.flatten(1), value.flatten(1))
        return output.view(count, self._heads, -1)[..., : self._width].flatten(1)


def wider_layer(attention: Any, columns: int, vllm_config: VllmConfig) -> nn.Module:
    """A layer that replaces `attention`, with extra dimensions in its heads."""
    from vllm.model_executor.layers.attention import Attention  # here, so that the rest runs without vLLM

    # It takes over the name, by which caches are bound and kernels are called.
    del vllm_config.compilation_config.static_forward_context[attention.layer_name]
    return Attention(
        attention.num_heads,
        attention.head_size + columns,
        attention.impl.scale,
        num_kv_heads=attention.num_kv_heads,
        cache_config=vllm_config.cache_config,
        quant_config=attention.quant_config,
        per_layer_sliding_window=attention.sliding_window,
        attn_type=attention.attn_type,
        prefix=attention.layer_name,
    )


def columns_for(attention: Any, wanted: int | None) -> int:
    """How many dimensions to add to the heads of a layer, so that its backend supports them."""
    width, backend = attention.head_size, attention.attn_backend
    choices = range(COLUMNS, MOST_COLUMNS + 1, COLUMNS) if wanted is None else [wanted]
    fitting = next((columns for columns in choices if backend.supports_head_size(width + columns)), None)
    if fitting is None:
        sizes = ", ".join(map(str, backend.get_supported_head_sizes())) or "other sizes"
        raise CovistError(
            f"vLLM: {backend.get_name()} does not support head size {width + choices[0]} ({width} and the bias), only "
            f"{sizes}; set columns accordingly, or use a method without a bias, such as divprune"
        )
    return fitting


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
