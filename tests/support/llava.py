"""Small random LLaVA-1.5 models (144 tokens per image, 8 decoder layers), their CLIP, and prompts for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerBase,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from covist.tiny.text import END, IMAGE, PAD, START, TOKEN_ID, VOCABULARY, build_caption_tokenizer, build_tokenizer
from support.families import smooth_image

SIDE, PATCH = 12, 4
TOKENS, LAYERS = SIDE * SIDE, 8
WIDTH, HEADS, CLIP_WIDTH = 32, 4, 24

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}"
    "{% for part in message['content'] %}"
    "{{ '<image> ' if part['type'] == 'image' else part['text'] + ' ' }}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def vision_config() -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=CLIP_WIDTH,
        intermediate_size=48,
        projection_dim=16,
        num_hidden_layers=4,
        num_attention_heads=3,
        image_size=SIDE * PATCH,
        patch_size=PATCH,
        initializer_factor=6.0,
    )


def llava_config(kv_heads: int = HEADS, layers: int = LAYERS) -> LlavaConfig:
    # No end token, so that every request runs to its last step; weights wide enough that every token matters.
    tokens = {"bos_token_id": TOKEN_ID[START], "eos_token_id": None, "pad_token_id": TOKEN_ID[PAD]}
    decoder = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        initializer_range=0.25,
        **tokens,
    )
    return LlavaConfig(
        vision_config=vision_config(),
        text_config=decoder,
        image_token_index=TOKEN_ID[IMAGE],
        image_seq_length=TOKENS,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        initializer_range=0.25,
        **tokens,
    )


def build_llava(kv_heads: int = HEADS, layers: int = LAYERS, seed: int = 0) -> LlavaForConditionalGeneration:
    torch.manual_seed(seed)
    return LlavaForConditionalGeneration(llava_config(kv_heads, layers)).eval()


def build_clip(model: LlavaForConditionalGeneration) -> tuple[CLIPModel, PreTrainedTokenizerBase]:
    """A CLIP whose vision tower is that of `model`."""
    text = CLIPTextConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=20,
        intermediate_size=40,
        projection_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=TOKEN_ID[START],
        eos_token_id=TOKEN_ID[END],
        pad_token_id=TOKEN_ID[PAD],
        initializer_factor=6.0,
    )
    torch.manual_seed(1)
    config = CLIPConfig(text_config=text.to_dict(), vision_config=vision_config().to_dict(), projection_dim=16)
    clip = CLIPModel(config).eval()
    clip.vision_model.load_state_dict(model.model.vision_tower.state_dict())
    return clip, build_caption_tokenizer()


@cache
def processor() -> LlavaProcessor:
    side = {"height": SIDE * PATCH, "width": SIDE * PATCH}
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=side, crop_size=side),
        tokenizer=build_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )


def ask(*texts: str, seeds: tuple[int, ...] | None = None, side: str = "left") -> Any:
    """Model inputs of prompts; `<image>` stands for an image, whose seed may be named."""
    count = sum(text.count(IMAGE) for text in texts)
    seeds = tuple(range(count)) if seeds is None else seeds
    images = [smooth_image(SIDE * PATCH, SIDE * PATCH, seed) for seed in seeds]
    return processor()(images=images or None, text=list(texts), padding=True, padding_side=side, return_tensors="pt")
