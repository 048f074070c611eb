"""What a layer's attention adds to its logits."""

from types import SimpleNamespace

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from covist.engine.attention.interface import AttentionCall, MaskRule


def added_by(attention, layer, queries, heads=1, backend="sdpa", dtype=torch.float32, rule=None, keys=None):
    """The mask or bias [batch, heads or 1, queries, keys] that reaches the backend; None if there is none."""
    ledger = attention.ledger
    batch, keys = len(ledger.shift), ledger.length if keys is None else keys
    query, key = torch.zeros(batch, heads, queries, 8, dtype=dtype), torch.zeros(batch, heads, keys, 8, dtype=dtype)
    seen = []

    def kernel(module, query, key, value, mask, position_bias=None, **options):
        assert mask is None or position_bias is None
        if position_bias is not None:  # flex indexes every dimension, without broadcasting
            assert position_bias.shape == (batch, heads, queries, keys)
        seen.append(mask if position_bias is None else position_bias)

    module = _Module(layer, kernel)
    former = {name: ALL_ATTENTION_FUNCTIONS[name] for name in ("sdpa", "flex_attention")}
    try:
        for name in former:
            ALL_ATTENTION_FUNCTIONS[name] = kernel
        attention.attend(AttentionCall(module, backend, query, key, key, rule or MaskRule(), {}))
    finally:
        for name, function in former.items():
            ALL_ATTENTION_FUNCTIONS[name] = function
    (mask,) = seen
    if mask is not None and mask.dtype == torch.bool:
        return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return mask


class _Module:
    """An attention module, whose eager function is that of this file."""

    def __init__(self, layer, kernel):
        self.layer_idx, self.config = layer, SimpleNamespace(_attn_implementation="covist:sdpa")
        global eager_attention_forward
        eager_attention_forward = kernel
