"""Sizes of a decoder for the accounting, from its configuration where a trial run does not show them."""

from __future__ import annotations

from typing import Any

from covist.schedule import decoder_flops

MLP_WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "ffn_size")
"""Names of the MLP's width in configurations."""
KEYLESS = ("linear", "conv", "mamba", "recurrent", "ssm", "mlp", "moe")
"""Parts of the names of layers without keys."""


def layer_config(config: Any, layer: int) -> Any:
    """The configuration of one layer; heterogeneous ones refuse to give a common value."""
    layers = _value(config, "per_layer_config")
    return layers[layer] if layers and layer < len(layers) else config


def kv_numbers(config: Any, layer: int, layers: int) -> int:
    """How many numbers the cache of a layer holds for a token, by the configuration."""
    kinds = _value(config, "layer_types") or _value(config, "layers_block_type") or ()
    shared = _value(config, "num_kv_shared_layers") or 0
    if layer >= layers - shared or (layer < len(kinds) and any(part in str(kinds[layer]) for part in KEYLESS)):
        return 0
    of_layer = layer_config(config, layer)
    heads = _value(of_layer, "num_attention_heads") or 1
    width = _value(of_layer, "head_dim") or (_value(of_layer, "hidden_size") or 0) // heads
    return 2 * (_value(of_layer, "num_key_value_heads") or heads) * width


def query_heads(config: Any, layer: int) -> int | None:
    return _value(layer_config(config, layer), "num_attention_heads")


def mlp_width(config: Any, layers: int) -> int:
    """Width of the MLP that a token passes through, on average over the layers.

    In a mixture, it is the width of the active experts and the shared one together.
    """
    widths = [_mlp_width(layer_config(config, layer), layer) for layer in range(layers)]
    return round(sum(widths) / max(1, len(widths)))


def _mlp_width(config: Any, layer: int) -> int:
    dense = next((width for name in MLP_WIDTHS if (width := _value(config, name))), None)
    if isinstance(dense, (list, tuple)):
        dense = dense[min(layer, len(dense) - 1)]
    experts = _value(config, "num_experts_per_tok")
    width = (experts and _value(config, "moe_intermediate_size")) or dense
    if width is None:
        width = 4 * config.hidden_size  # as in the first transformers, whose configurations do not say it
    shared = (experts and _value(config, "shared_expert_intermediate_size")) or 0
    return (experts or 1) * width + shared


def plain_flops(module: Any, length: int) -> float:
    """Eq. 19 for an uncompressed prefill of `length` tokens."""
    layers = len(module.layers)
    return decoder_flops([length] * layers, module.config.hidden_size, mlp_width(module.config, layers))


def _value(config: Any, name: str) -> Any:
    """A value of a configuration; None if it has none, or if its layers differ in it."""
    try:
        return getattr(config, name, None)
    except Exception:  # transformers' error for values that differ between layers is not exported
        return None
