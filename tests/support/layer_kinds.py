"""Small random LLaVA models over text models of every kind of layer, with windows and chunks that an image exceeds."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import LlavaForConditionalGeneration

from support.llava import llava_config
from support.text_models import text_config

WINDOW, CHUNK = 20, 12
STD = 0.08
SIZES = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "num_key_value_heads": 4,
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
    "first_k_dense_replace": 2,
}
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8}
BAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "attn_layer_indices": [1, 3],
}
PER_LAYER = {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 0, "global_head_dim": 16}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "sliding": ("MistralConfig", {"sliding_window": WINDOW}),
    "sliding, two rotary tables": ("Gemma3TextConfig", ALTERNATING),
    "sliding, soft caps": ("Gemma2Config", {**ALTERNATING, "attn_logit_softcapping": 2.0}),
    "sliding, full without rotary": ("Cohere2Config", ALTERNATING),
    "sliding, sinks": ("GptOssConfig", {**ALTERNATING, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "sliding, shared keys": ("Gemma4TextConfig", {**ALTERNATING, **PER_LAYER, "num_kv_shared_layers": 2}),
    "chunked": (
        "Llama4TextConfig",
        {
            "attention_chunk_size": CHUNK,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
        },
    ),
    "linear": ("Qwen3_5TextConfig", LINEAR),
    "linear, experts": ("Qwen3NextConfig", {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "convolution": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}),
    "mamba": ("NemotronHConfig", {**MAMBA, "layers_block_type": ["mamba", "attention", "mlp", "mamba", "attention"]}),
    "mamba, rotary": ("BambaConfig", BAMBA),
    "latent keys": ("DeepseekV3Config", LATENT),
    "fused projections": ("Phi3Config", {"sliding_window": WINDOW}),
}


def build(name: str, **changes: Any) -> LlavaForConditionalGeneration:
    config, options = KINDS[name]
    whole = llava_config()
    whole.text_config = text_config(config, {**SIZES, **options, **changes})
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(whole).eval()
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            if parameter.ndim >= 2:  # the default of 0.02 would hide errors
                parameter.normal_(std=STD)
    return model


@cache
def model_of(name: str) -> LlavaForConditionalGeneration:
    return build(name)
