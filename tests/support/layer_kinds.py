"""Small random LLaVA models over text models of every kind of layer, with windows and chunks that an image exceeds."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from covist.tiny.text import PAD, TOKEN_ID
from support.checks import Subject
from support.llava import TOKENS, ask, llava_config
from support.requests import sample_of
from support.text_models import CHUNKED, EXPERTS, FEW_EXPERTS, LATENT, LINEAR, MAMBA, PER_LAYER, text_config

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TWO = "USER: where is this <image> and <image> what color is the left object ? ASSISTANT:"
SHORT = "<image> what"
WINDOW, CHUNK = 20, 12
STD = 0.08
SIZES = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW}
TURNS = {**LINEAR, "layer_types": ["linear_attention", "full_attention"] * 2}
DEEPSEEK = {**LATENT, "num_key_value_heads": 4, "first_k_dense_replace": 2}
BAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "attn_layer_indices": [1, 3],
}
MANY = 512  # more keys than a prompt has: an indexer chooses all of them
INDEXED = {**DEEPSEEK, "index_n_heads": 2, "index_head_dim": 16, "index_topk": MANY}
SHARED = {**INDEXED, "indexer_types": ["full", "shared"] * 2}
BLOCKS = {
    "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
    **{"index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": MANY},
    **{"rotary_dim": 4, "dense_intermediate_size": 64, "shared_intermediate_size": 16},
    **FEW_EXPERTS,
}
POOLED = {
    **SHARED,
    **{"qk_rope_head_dim": 0, "index_kpool": 4, "linear_num_heads": 2, "linear_head_dim": 8},
    "layer_types": ["linear_attention", "indexed_attention"] * 2,
    "indexer_types": ["full"] * 4,
}
QWEN4 = {
    **{**LINEAR, "layer_types": ["linear_attention", "indexed_attention"] * 2},
    **{**EXPERTS, "shared_expert_intermediate_size": 16, "head_dim": 16, "hc_count": 2, "hc_lowrank": 8},
    **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16},
    **{"indexer_budget": MANY, "indexer_compress_ratio": 4, "ple_layer_ids": []},
}
COUNTED = {
    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
    **{"sliding_window_size": WINDOW, "d_rel": 4, "rel_extent": 64},
    **{"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8},
}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "sliding": ("MistralConfig", {"sliding_window": WINDOW}),
    "sliding, two rotary tables": ("Gemma3TextConfig", ALTERNATING),
    "sliding, soft caps": ("Gemma2Config", {**ALTERNATING, "attn_logit_softcapping": 2.0}),
    "sliding, full without rotary": ("Cohere2Config", ALTERNATING),
    "sliding, sinks": ("GptOssConfig", {**ALTERNATING, **FEW_EXPERTS}),
    "sliding, shared keys": ("Gemma4TextConfig", {**ALTERNATING, **PER_LAYER, "num_kv_shared_layers": 2}),
    "chunked": (
        "Llama4TextConfig",
        {**CHUNKED, "attention_chunk_size": CHUNK},
    ),
    "linear": ("Qwen3_5TextConfig", TURNS),
    "linear, experts": ("Qwen3NextConfig", {**TURNS, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "convolution": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}),
    "mamba": ("NemotronHConfig", {**MAMBA, "layers_block_type": ["mamba", "attention", "mlp", "mamba", "attention"]}),
    "mamba, rotary": ("BambaConfig", BAMBA),
    "latent keys": ("DeepseekV3Config", DEEPSEEK),
    "fused projections": ("Phi3Config", {"sliding_window": WINDOW}),
    "chosen keys": ("DeepseekV32Config", INDEXED),
    "chosen keys, shared": ("GlmMoeDsaConfig", SHARED),
    "chosen blocks": ("MiniMaxM3VLTextConfig", BLOCKS),
    "chosen pools": ("Glm5NextTextConfig", POOLED),
    "chosen pools, rotary": ("Qwen4ExpTextConfig", QWEN4),
    "counted distances": ("InklingTextConfig", COUNTED),
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
def model_of(name: str, **changes: Any) -> LlavaForConditionalGeneration:
    return build(name, **changes)


class KindOfLayer(Subject):
    """A model of one kind of layer, and prompts for it."""

    tokens, budget = TOKENS, 24

    def __init__(self, name: str, **changes: Any):
        """`changes`: other values of the text configuration."""
        self.model = model_of(name, **changes)
        self.suppressed = [self.model.config.image_token_id, TOKEN_ID[PAD]]

    def prompt(self, images: int = 1) -> dict[str, Tensor]:
        return ask(PROMPT if images == 1 else TWO)

    def batch(self) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        together = ask(PROMPT, TWO, SHORT)
        images = (slice(0, 1), slice(1, 3), slice(3, 4))
        return together, [sample_of(together, index, own) for index, own in enumerate(images)]

    def question(self) -> Tensor:
        return ask("USER: where is the left object ? ASSISTANT:")["input_ids"][:, 1:]

    def longer(self, inputs: dict[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        return {"input_ids": ids, "pixel_values": inputs["pixel_values"]}

    def is_image(self, ids: Tensor) -> Tensor:
        return ids == self.model.config.image_token_id
