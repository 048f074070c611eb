"""Checkpoints on disk of types that no family file names, with their real processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families.processors import image_only
from support.families import lively, tokenizer
from support.matrix.qwen2_vl import TOKENS

TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.5,
    },
}
TOWER = {"hidden_size": 32, "intermediate_size": 48}
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'text' %} {{ part['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def qwen3_5() -> tuple[Any, Any, str]:
    vision = {**TOWER, "depth": 3, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 36}
    config = Qwen3_5Config(text_config={**TEXT, **LINEAR}, vision_config={**vision, "patch_size": 16}, **TOKENS)
    size = {"shortest_edge": 30 * 32**2, "longest_edge": 1296 * 32**2}
    processor = image_only(Qwen3VLProcessor)(Qwen2VLImageProcessorPil(size=size, patch_size=16), tokenizer())
    return Qwen3_5ForConditionalGeneration(config), processor, "<|vision_start|><|image_pad|><|vision_end|>"


def gemma3() -> tuple[Any, Any, str]:
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    words = tokenizer(*marks.values(), extra_special_tokens=marks)
    begin, end, image = (words.convert_tokens_to_ids(mark) for mark in marks.values())
    windows = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}
    vision = {**TOWER, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 128, "patch_size": 8}
    config = Gemma3Config(
        text_config={**TEXT, **windows},
        vision_config=vision,
        mm_tokens_per_image=64,
        image_token_index=image,
        boi_token_index=begin,
        eoi_token_index=end,
    )
    images = Gemma3ImageProcessorPil(size={"height": 128, "width": 128})
    return (
        Gemma3ForConditionalGeneration(config),
        Gemma3Processor(images, words, image_seq_length=64),
        marks["boi_token"],
    )


BUILDERS: dict[str, Callable[[], tuple[Any, Any, str]]] = {"qwen3_5": qwen3_5, "gemma3": gemma3}


def saved(name: str, folder: Path) -> Path:
    """The folder of a checkpoint, as anybody would save it."""
    torch.manual_seed(0)
    model, processor, image = BUILDERS[name]()
    processor.chat_template = CHAT.replace("IMAGE", image)
    lively(model.eval()).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
