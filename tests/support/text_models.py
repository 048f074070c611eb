"""Small random LLaVA models over text models of many kinds, with all that makes their attention differ switched on."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from transformers import LlavaForConditionalGeneration

from covist.tiny.text import PAD, TOKEN_ID, VOCABULARY
from support.llava import llava_config

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": TOKEN_ID[PAD],
}
GROUPED = {"num_key_value_heads": 2}
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}

# Parts of configurations: what makes a kind of layer.
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8}
PER_LAYER = {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 0, "global_head_dim": 16}
CHUNKED = {"intermediate_size_mlp": 64, "num_local_experts": 4, "num_experts_per_tok": 1}
FEW_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

READABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "llama, biases and wide heads": ("LlamaConfig", {**GROUPED, "attention_bias": True, "head_dim": 12}),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen3: norm per head": ("Qwen3Config", {**GROUPED, "head_dim": 16}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        {**GROUPED, **EXPERTS, "head_dim": 16},
    ),
    "granite: own scale, embeddings scaled": (
        "GraniteConfig",
        {**GROUPED, "attention_multiplier": 0.6, "embedding_multiplier": 5.0, "residual_multiplier": 0.7},
    ),
    "cohere: neighbours, parallel": ("CohereConfig", GROUPED),
    "cohere: norm with a weight per head": ("CohereConfig", {**GROUPED, "use_qk_norm": True}),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": None}),
    "ministral3: layers read their position ids": (
        "Ministral3Config",
        {**GROUPED, "head_dim": 8, "sliding_window": None},
    ),
    "olmo2: full-width norm, none before attention": ("Olmo2Config", GROUPED),
    "stablelm: partial rotary": ("StableLmConfig", {**GROUPED, **PARTIAL}),
    "stablelm: norm module per head, parallel": (
        "StableLmConfig",
        {**GROUPED, **PARTIAL, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "phi: partial rotary, layer norm": ("PhiConfig", {**GROUPED, **PARTIAL, "qk_layernorm": True}),
    "glm: partial neighbours of halves": ("GlmConfig", {**GROUPED, **PARTIAL, "head_dim": 8}),
    "ernie: neighbours of halves": ("Ernie4_5Config", {**GROUPED, "head_dim": 8}),
    "gemma: norm with 1 + w": ("GemmaConfig", {**GROUPED, "head_dim": 16}),
    "hunyuan: norm after rotation": ("HunYuanDenseV1Config", {**GROUPED, "head_dim": 8}),
    "nemotron: layer norm with 1 + w": ("NemotronConfig", {**GROUPED, **PARTIAL}),
    "smollm3: layers without rotary": ("SmolLM3Config", GROUPED),
    "qwen3-next, attention only: gated queries": (
        "Qwen3NextConfig",
        {
            **GROUPED,
            **PARTIAL,
            **EXPERTS,
            "head_dim": 16,
            "layer_types": ["full_attention"] * 8,
            "shared_expert_intermediate_size": 16,
        },
    ),
}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "encoder-decoder": ("T5Config", {"d_kv": 8, "num_heads": 4}, "T5Model is not a decoder-only text model"),
    "learned positions": ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 32}, "OPTModel is not a decoder-only"),
    "alibi": ("BloomConfig", {}, "BloomModel is not a decoder-only text model"),
}


def text_config(name: str, options: dict[str, Any]) -> Any:
    return getattr(transformers, name)(**{**SIZES, **options})


def build(text: Any, seed: int = 0) -> LlavaForConditionalGeneration:
    """LLaVA with a text configuration; norms get weights of their own, so that leaving one out is seen."""
    config = llava_config()
    config.text_config = text
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.model.language_model.named_parameters():
            if parameter.ndim >= 2 and "norm" not in name:
                parameter.normal_(std=0.25)
            elif "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


@cache
def readable(name: str) -> LlavaForConditionalGeneration:
    return build(text_config(*READABLE[name]))
