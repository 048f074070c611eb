"""Small random models of further classes that vLLM serves, with the processors of published checkpoints."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import DeepseekV3Config, LlavaConfig, Qwen3VLProcessor

from support.case import Case
from support.cases import CASES
from support.families import lively, tokenizer
from support.llava import build_llava, processor
from support.without_a_file import qwen3_5

TEXT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
GLM_MARKS = (
    "<|image|>",
    "<|video|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
)


def built(model_class: str, config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return lively(getattr(transformers, model_class)(config).eval())


def glm4v() -> Any:
    names = ("image_token_id", "video_token_id", "image_start_token_id", "image_end_token_id")
    names += ("video_start_token_id", "video_end_token_id")
    ids = tokenizer(*GLM_MARKS).convert_tokens_to_ids(GLM_MARKS)
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "partial_rotary_factor": 0.5}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 48}
    config = transformers.Glm4vConfig(
        text_config={**TEXT, "rope_parameters": sections, "attention_bias": True},
        vision_config={**vision, "image_size": 112},
        **dict(zip(names, ids, strict=True)),
    )
    return built("Glm4vForConditionalGeneration", config)


def glm4v_processor() -> Any:
    size = {"shortest_edge": 30 * 28**2, "longest_edge": 200 * 28**2}
    images = transformers.Glm4vImageProcessor(size=size)
    return transformers.Glm4vProcessor(images, tokenizer(*GLM_MARKS), transformers.Glm4vVideoProcessor())


def hybrid() -> Any:
    """Linear attention in sizes that the CPU's kernels have."""
    config = qwen3_5()[0].config
    for name in ("linear_key_head_dim", "linear_value_head_dim"):
        setattr(config.text_config, name, 128)
    return built("Qwen3_5ForConditionalGeneration", config)


def hybrid_processor() -> Any:
    _, images, _ = qwen3_5()
    return Qwen3VLProcessor(images.image_processor, images.tokenizer, transformers.Qwen3VLVideoProcessor())


def vipllava() -> Any:
    """A class that vLLM has no file for."""
    small = build_llava().config.to_dict()
    config = transformers.VipLlavaConfig(
        text_config=small["text_config"],
        vision_config=small["vision_config"],
        image_token_index=small["image_token_index"],
        vision_feature_layers=[-2, -1],
        tie_word_embeddings=False,
    )
    torch.manual_seed(2)
    return transformers.VipLlavaForConditionalGeneration(config).eval()  # its configuration makes it lively


def vipllava_processor() -> Any:
    """With the image processor that vLLM's Transformers backend takes."""
    made = processor()
    made.image_processor = transformers.CLIPImageProcessor(
        size=dict(made.image_processor.size), crop_size=dict(made.image_processor.crop_size)
    )
    return made


def latent() -> Any:
    """LLaVA over a decoder with latent attention, whose cache the CPU's kernel has in one width."""
    usual = build_llava().config
    latents = {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "q_lora_rank": 64,
    }
    dense = {"first_k_dense_replace": 3, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    text = DeepseekV3Config(
        **{**TEXT, **latents, **dense, "moe_intermediate_size": 32, "pad_token_id": 0, "initializer_range": 0.1}
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=usual.vision_config,
        image_token_index=usual.image_token_index,
        image_seq_length=usual.image_seq_length,
        tie_word_embeddings=False,
    )
    torch.manual_seed(3)
    return transformers.LlavaForConditionalGeneration(config).eval()


def case(name: str, model_class: str, build: Any, make: Any, image: str) -> Case:
    return Case(name, name, model_class, build, make, image, "USER: {} ASSISTANT:", slow=object)


GLM = case("glm4v", "Glm4vForConditionalGeneration", glm4v, glm4v_processor, "".join(GLM_MARKS[i] for i in (2, 0, 3)))
HYBRID = case(
    "qwen3.5",
    "Qwen3_5ForConditionalGeneration",
    hybrid,
    hybrid_processor,
    "<|vision_start|><|image_pad|><|vision_end|>",
)
WITHOUT_A_CLASS = case("vipllava", "TransformersMultiModalForCausalLM", vipllava, vipllava_processor, "<image> ")
LATENT = case("llava over deepseek", "LlavaForConditionalGeneration", latent, processor, "<image> ")
MODELS: dict[str, Case] = {one.name: one for one in (*CASES, GLM, HYBRID, WITHOUT_A_CLASS, LATENT)}
