"""Small random models of the real Qwen2-VL and Qwen3-VL classes, with their real image processor."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from transformers import (
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families.qwen_processor import ImageOnlyQwenProcessor
from support.families import VOCABULARY, lively, tokenizer

TOKENS = {
    f"{name}_token_id": VOCABULARY[f"<|{word}|>"]
    for name, word in (
        ("image", "image_pad"),
        ("video", "video_pad"),
        ("vision_start", "vision_start"),
        ("vision_end", "vision_end"),
    )
}


def _text(layers: int, kv_heads: int, sections: list[int], changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        **changes,
    }


def qwen2_vl(layers: int = 4, kv_heads: int = 2, seed: int = 0, **text: Any) -> Any:
    """Every block of the tower sees the whole image."""
    config = Qwen2VLConfig(
        vision_config={"depth": 3, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
        text_config=_text(layers, kv_heads, [1, 1, 2], text),
        **TOKENS,
    )
    torch.manual_seed(seed)
    return lively(Qwen2VLForConditionalGeneration(config).eval())


VISION3 = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1, 2],
}


def qwen3_vl(layers: int = 5, kv_heads: int = 2, seed: int = 0, **text: Any) -> Any:
    """Heads of 16 in a width of 32, DeepStack after the first three layers, norms that change signs."""
    changes = {"head_dim": 16, **text}
    config = Qwen3VLConfig(vision_config=VISION3, text_config=_text(layers, kv_heads, [4, 2, 2], changes), **TOKENS)
    torch.manual_seed(seed)
    return _with_lively_norms(Qwen3VLForConditionalGeneration(config).eval())


def qwen3_vl_moe(layers: int = 5, kv_heads: int = 2, seed: int = 0, **text: Any) -> Any:
    """The same with two of four experts for every token."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16, **text}
    config = Qwen3VLMoeConfig(vision_config=VISION3, text_config=_text(layers, kv_heads, [4, 2, 2], experts), **TOKENS)
    torch.manual_seed(seed)
    return _with_lively_norms(Qwen3VLMoeForConditionalGeneration(config).eval())


@torch.no_grad()
def _with_lively_norms(model: Any) -> Any:
    for layer in model.model.language_model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.weight.uniform_(-1.5, 1.5)
    return lively(model)


def qwen3_vl_processor() -> ImageOnlyQwenProcessor:
    """32 pixels per token and at least 30 tokens per image."""
    size = {"shortest_edge": 30 * 32**2, "longest_edge": 1296 * 32**2}
    return ImageOnlyQwenProcessor(Qwen2VLImageProcessorPil(size=size, patch_size=16), tokenizer())


def qwen3_vl_inputs(prompts: list[str], images: list[Image.Image]) -> Any:
    """`{image}` in a prompt stands for the next image."""
    texts = [text.replace("{image}", "<|vision_start|><|image_pad|><|vision_end|>") for text in prompts]
    return qwen3_vl_processor()(images=images or None, text=texts, padding=True, return_tensors="pt")
