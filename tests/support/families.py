"""What the small models of the families share: a tokenizer of a few words, images, weights that matter."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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


def vocabulary(*special: str) -> dict[str, int]:
    """Ids of the words, and of the tokens that a family needs beyond SPECIAL (the models have room for 96)."""
    return {**VOCABULARY, **{word: len(VOCABULARY) + number for number, word in enumerate(special)}}


def tokenizer(*special: str, **options: Any) -> PreTrainedTokenizerFast:
    """One token per word, which knows whether a space stands before it, so that decoding gives the text back.

    `special` are further tokens of a family; `options` go to the tokenizer (`extra_special_tokens=`, for example).
    """
    words = Tokenizer(models.WordLevel(vocabulary(*special), unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    words.decoder = decoders.Metaspace(prepend_scheme="never")
    usual = {"pad_token": "<pad>", "unk_token": "<unk>", "padding_side": "left"}
    fast = PreTrainedTokenizerFast(tokenizer_object=words, **usual, **options)
    fast.add_special_tokens({"additional_special_tokens": [*SPECIAL[2:], *special]})
    return fast


def smooth_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth coloured image with a little noise, so that neighbouring patches resemble each other."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 5, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0]
    noisy = (smooth + 0.1 * torch.rand(3, height, width, generator=generator)).clamp(0, 1)
    return Image.fromarray((255 * noisy).byte().permute(1, 2, 0).numpy())


@torch.no_grad()
def lively(model: Any) -> Any:
    """Random weights large enough that attention is far from uniform and every token matters to the logits."""
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            parameter.mul_(4.0 if "vision" in name or "visual" in name else 6.0)
        elif name.endswith("bias"):
            parameter.normal_(std=0.3)
    return model
