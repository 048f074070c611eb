"""Flash attention's two functions in plain torch, for transformers' own flash attention path.

They have no argument for a mask or a bias. Causality is flash attention's: the last query sees the last key.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface, modeling_flash_attention_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import flash_attention_mask

from covist.formulas.attention import DistanceTable
from covist.formulas.cosine_series import fit_series
from covist.formulas.wide_heads import COLUMNS, terms_in

FLASH = "flash_attention_2"
HUB_KERNEL = "stand-in/flash-attn"
"""A kernel as transformers registers those of the hub."""


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p=0.0, softmax_scale=None, causal=False) -> Tensor:
    """Batches of one length, [batch, tokens, heads, width]."""
    assert q.shape[-1] == k.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0
    queries, keys = q.shape[1], k.shape[1]
    how: dict[str, Any] = {"is_causal": causal} if queries == keys else {}
    if causal and 1 < queries < keys:
        how = {"attn_mask": causal_lower_right(queries, keys)}
    states = (states.transpose(1, 2) for states in (q, k, v))
    attended = F.scaled_dot_product_attention(*states, dropout_p=dropout_p, scale=softmax_scale, enable_gqa=True, **how)
    return attended.transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Sequences one after the other, [all tokens, heads, width]."""
    parts = []
    for index in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[index], cu_seqlens_q[index + 1])
        columns = slice(cu_seqlens_k[index], cu_seqlens_k[index + 1])
        part = flash_attn_func(q[None, rows], k[None, columns], v[None, columns], dropout_p, softmax_scale, causal)
        parts.append(part[0])
    return torch.cat(parts)


def switch_on(patch: pytest.MonkeyPatch, model: Any, name: str = FLASH) -> None:
    """Let the decoder of a model run flash attention, with these functions in place of the package or hub kernel."""
    utils = modeling_flash_attention_utils

    def found(implementation: str, *_: Any, **__: Any) -> tuple:
        assert implementation in (FLASH, HUB_KERNEL), implementation
        process = utils._lazy_define_process_function(flash_attn_varlen_func)
        functions = (flash_attn_func, flash_attn_varlen_func, None, utils._pad_input, utils._unpad_input)
        # releases before 5.19 have one function that reads the arguments, later ones a second for paged caches
        paged = hasattr(utils, "_process_with_kvcache_kwargs_fn")
        return functions, ((process, None) if paged else process)

    patch.setattr(utils, "lazy_import_flash_attention", found)
    patch.setitem(AttentionInterface._global_mapping, HUB_KERNEL, flash_attention_forward)
    patch.setitem(AttentionMaskInterface._global_mapping, HUB_KERNEL, flash_attention_mask)
    patch.setattr(model.config.text_config, "_attn_implementation", name)


def put_series_into_masks(patch: pytest.MonkeyPatch, columns: int = COLUMNS) -> None:
    """Distance factors from the series in place of the exact ones, to compare all the rest exactly.

    columns: further dimensions of the heads that are compared with.
    """
    fitted: dict[int, Any] = {}
    exact = DistanceTable.log_factor

    def log_factor(self: DistanceTable, queries: Tensor, keys: Tensor, limit: int | None = None) -> Tensor:
        if id(self) not in fitted:
            fitted[id(self)] = None  # while the series is fitted, the table itself answers
            fitted[id(self)] = fit_series(self, terms_in(columns))
        if fitted[id(self)] is None:
            return exact(self, queries, keys, limit)
        if not self.multidimensional:
            queries, keys = queries[..., None], keys[..., None]
        return fitted[id(self)]((queries[..., :, None, :] - keys[..., None, :, :]).abs()).float()

    patch.setattr(DistanceTable, "log_factor", log_factor)
