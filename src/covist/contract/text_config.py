"""What the configuration of a text model says about its layers: their kinds, their cache, their MLPs."""

from __future__ import annotations

from typing import Any

from covist.plan import Geometry, Layer

MLP_WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "ffn_size")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "top_k_experts", "moe_topk")
SHARED_WIDTHS = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
SHARED_COUNTS = ("n_shared_experts", "moe_num_shared_experts")
KINDS = ("chunked", "sliding", "indexed", "conv", "mamba", "linear", "recurrent", "ssm", "mlp", "moe")
"""Words in the names of layer types, each of which is a kind of its own; any other layer has full attention."""
KEYLESS = ("conv", "mamba", "linear", "recurrent", "ssm", "mlp", "moe")
"""Kinds of layers without keys."""


def field(config: Any, *names: str) -> Any:
    """The first of these values that a configuration has; None if it has none, or if its layers differ in it."""
    for name in names:
        try:
            value = getattr(config, name, None)
        except Exception:  # transformers' error for values that differ between layers is not exported
            continue
        if value is not None:
            return value
    return None


def text_config(config: Any) -> Any:
    """The configuration of the text model inside that of a vision-language model."""
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def layer_config(config: Any, layer: int) -> Any:
    """The configuration of one layer; heterogeneous ones refuse to give a common value."""
    layers = field(config, "per_layer_config")
    return layers[layer] if layers and layer < len(layers) else config


def query_heads(config: Any, layer: int) -> int | None:
    return field(layer_config(config, layer), "num_attention_heads")


def geometry_of(config: Any, name: str = "", tokens: int = 1, layers: int | None = None) -> Geometry:
    """The geometry of a text model, with every layer's own costs; `layers` if not as many as the configuration says.

    Layers with an indexer are counted as full attention, because the indexer compares every query with every key.
    """
    layers = field(config, "num_hidden_layers") if layers is None else layers
    first = layer_config(config, 0)
    heads = query_heads(config, 0) or 1
    pattern = tuple(_layer(config, index, layers) for index in range(layers))
    return Geometry(
        name,
        layers,
        hidden=config.hidden_size,
        intermediate=max(layer.mlp or 0 for layer in pattern),
        heads=heads,
        kv_heads=field(first, "num_key_value_heads") or heads,
        tokens=tokens,
        head_dim=_head_width(first),
        pattern=pattern,
    )


def _layer(config: Any, index: int, layers: int) -> Layer:
    kind = _kind(config, index)
    reach = 0 if kind in KEYLESS else None
    if kind in ("sliding", "chunked"):
        reach = field(config, "sliding_window" if kind == "sliding" else "attention_chunk_size")
    has_cache = kind not in KEYLESS and not _reads_another_cache(config, index, layers)
    cached = _cached(layer_config(config, index)) if has_cache else 0
    return Layer(kind, reach, cached, _mlp_width(config, index, layers))


def _kind(config: Any, index: int) -> str:
    types = field(config, "layer_types", "layers_block_type") or ()
    if index < len(types):
        found = next((kind for kind in KINDS if kind in str(types[index])), "full")
    else:
        has_window = field(config, "sliding_window") and field(config, "use_sliding_window") is not False
        found = "sliding" if has_window else "full"
    if found == "linear" and field(config, "mamba_num_heads") is not None:
        return "mamba"
    return "latent" if found == "full" and field(config, "kv_lora_rank") is not None else found


def _reads_another_cache(config: Any, index: int, layers: int) -> bool:
    sources = field(config, "kv_source_layers")
    if sources is not None:
        return bool(sources[index] != index)
    return index >= layers - (field(config, "num_kv_shared_layers") or 0)


def _cached(config: Any) -> int:
    """Numbers that a layer caches for a token."""
    latent = field(config, "kv_lora_rank")
    if latent is not None:
        return int(latent + (field(config, "qk_rope_head_dim") or 0))
    kv_heads = field(config, "num_key_value_heads", "num_attention_heads") or 1
    return int(2 * kv_heads * _head_width(config))


def _head_width(config: Any) -> int:
    heads = field(config, "num_attention_heads") or 1
    return field(config, "head_dim") or (field(config, "hidden_size") or 0) // heads


def _mlp_width(config: Any, index: int, layers: int) -> int:
    """Width of the MLP that a token passes through; in a mixture, of its active and shared experts together."""
    own = layer_config(config, index)
    dense = field(own, *MLP_WIDTHS) or 4 * config.hidden_size  # as in the first transformers, which do not say it
    if isinstance(dense, (list, tuple)):
        dense = dense[min(index, len(dense) - 1)]
    active = field(own, *EXPERTS_PER_TOKEN)
    if active and _is_mixture(own, index):
        expert = field(own, "moe_intermediate_size") or dense
        expert = max(expert) if isinstance(expert, (list, tuple)) else expert
        return int(active * expert + _shared_width(own, expert, dense))
    if field(own, "use_double_wide_mlp") and _reads_another_cache(config, index, layers):
        return int(2 * dense)
    return int(field(own, "dense_intermediate_size") or dense)


def _is_mixture(config: Any, index: int) -> bool:
    types = field(config, "mlp_layer_types")
    if types is not None:
        return bool(types[index] != "dense")
    return field(config, "enable_moe_block") is not False and index >= (field(config, "first_k_dense_replace") or 0)


def _shared_width(config: Any, expert: int, dense: int) -> int:
    if field(config, "enable_moe_block"):  # an MLP beside the experts
        return dense
    return field(config, *SHARED_WIDTHS) or (field(config, *SHARED_COUNTS) or 0) * expert
