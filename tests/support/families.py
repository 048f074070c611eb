"""Small random models of the real LLaVA-NeXT and Qwen2.5-VL classes, with their real processors."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families.qwen_processor import ImageOnlyQwenProcessor

SPECIAL = (
    "<pad>",
    "<unk>",
    "<image>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|im_start|>",
    "<|im_end|>",
)
WORDS = ("USER:", "ASSISTANT:", "user", "assistant", "what", "is", "the", "colour", "of", "this", "?", "and", "that")
VOCABULARY = {word: number for number, word in enumerate((*SPECIAL, "▁", *WORDS, *("▁" + word for word in WORDS)))}
TILE, PATCH = 56, 14  # LLaVA-NeXT: tiles of 4 x 4 patches
PINPOINTS = [[56, 112], [112, 56], [112, 112], [56, 168], [168, 56]]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, which knows whether a space stands before it, so that decoding gives the text back."""
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    words.decoder = decoders.Metaspace(prepend_scheme="never")
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", padding_side="left")
    fast.add_special_tokens({"additional_special_tokens": list(SPECIAL[2:])})
    return fast


def smooth_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth coloured image with a little noise, so that neighbouring patches resemble each other."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 5, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0]
    noisy = (smooth + 0.1 * torch.rand(3, height, width, generator=generator)).clamp(0, 1)
    return Image.fromarray((255 * noisy).byte().permute(1, 2, 0).numpy())


def llava_next(layers: int = 4, kv_heads: int = 4, seed: int = 0, **text: Any) -> LlavaNextForConditionalGeneration:
    """4 x 4 patches per tile, multi-head or grouped-query."""
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=TILE,
        patch_size=PATCH,
    )
    decoder = LlamaConfig(
        **{
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "eos_token_id": None,
            "pad_token_id": 0,
            **text,
        }
    )
    config = LlavaNextConfig(
        vision_config=vision,
        text_config=decoder,
        image_token_index=VOCABULARY["<image>"],
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-2,
    )
    torch.manual_seed(seed)
    return lively(LlavaNextForConditionalGeneration(config).eval())


def llava_next_processor() -> LlavaNextProcessor:
    return LlavaNextProcessor(
        LlavaNextImageProcessorPil(
            size={"shortest_edge": TILE}, crop_size={"height": TILE, "width": TILE}, image_grid_pinpoints=PINPOINTS
        ),
        tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def qwen(layers: int = 4, kv_heads: int = 2, seed: int = 0, vision: dict[str, Any] | None = None, **text: Any) -> Any:
    """Windows of 4 x 4 patches (2 x 2 tokens), full attention in blocks 1 and 2 of 4, grouped-query decoder."""
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1, 2],
            "out_hidden_size": text.get("hidden_size", 32),
            **(vision or {}),
        },
        text_config={
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            **text,
        },
        image_token_id=VOCABULARY["<|image_pad|>"],
        video_token_id=VOCABULARY["<|video_pad|>"],
        vision_start_token_id=VOCABULARY["<|vision_start|>"],
        vision_end_token_id=VOCABULARY["<|vision_end|>"],
    )
    torch.manual_seed(seed)
    return lively(Qwen2_5_VLForConditionalGeneration(config).eval())


def qwen_processor() -> ImageOnlyQwenProcessor:
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1296})
    return ImageOnlyQwenProcessor(images, tokenizer())


def llava_next_inputs(prompts: list[str], images: list[Image.Image]) -> Any:
    """`{image}` in a prompt stands for the next image."""
    texts = [text.replace("{image}", "<image>") for text in prompts]
    return llava_next_processor()(images=images or None, text=texts, padding=True, return_tensors="pt")


def qwen_inputs(prompts: list[str], images: list[Image.Image]) -> Any:
    texts = [text.replace("{image}", "<|vision_start|><|image_pad|><|vision_end|>") for text in prompts]
    return qwen_processor()(images=images or None, text=texts, padding=True, return_tensors="pt")


@torch.no_grad()
def lively(model: Any) -> Any:
    """Random weights large enough that attention is far from uniform and every token matters to the logits."""
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            parameter.mul_(4.0 if "vision" in name or "visual" in name else 6.0)
        elif name.endswith("bias"):
            parameter.normal_(std=0.3)
    return model
