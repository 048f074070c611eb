"""Idefics3 and SmolVLM: small models of the real classes, the real processors, and the slow reference."""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMProcessor,
)
from transformers.models.idefics3 import modeling_idefics3
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm import modeling_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from covist.families.processors import image_only
from support.case import Case
from support.families import lively, tokenizer, vocabulary
from support.slow_llava import SlowLlava, affinity
from support.towers import eager_attention, tokens_of_patches

TILE, SIDE = 48, 4  # pixels and tokens along a tile
COMMON = ("<fake_token_around_image>", "<end_of_utterance>", "User:", "Assistant:", "\n")
SPELLED_OUT = ("<row_", "_col_", ">", "<global", "-img", *"123456")
"""Marks of tiles as Idefics3-8B reads them, in pieces."""
WHOLE = ("<global-img>", *(f"<row_{row + 1}_col_{column + 1}>" for row in range(4) for column in range(4)))


def _config(config_class: Any, patch: int, special: tuple[str, ...], layers: int, kv_heads: int, text: Any) -> Any:
    return config_class(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": TILE,
            "patch_size": patch,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            **text,
        },
        scale_factor=TILE // patch // SIDE,
        image_token_id=vocabulary(*COMMON, *special)["<image>"],
        tie_word_embeddings=False,
    )


def idefics3(layers: int = 4, kv_heads: int = 2, seed: int = 0, **text: Any) -> Any:
    """2 x 2 patches per token."""
    torch.manual_seed(seed)
    config = _config(Idefics3Config, 6, SPELLED_OUT, layers, kv_heads, text)
    return lively(Idefics3ForConditionalGeneration(config).eval())


def smolvlm(layers: int = 4, kv_heads: int = 4, seed: int = 3, **text: Any) -> Any:
    """3 x 3 patches per token."""
    torch.manual_seed(seed)
    config = _config(SmolVLMConfig, 4, WHOLE, layers, kv_heads, text)
    return lively(SmolVLMForConditionalGeneration(config).eval())


def _sizes(tiles: int, options: dict[str, Any]) -> dict[str, Any]:
    """`tiles` along the longer side of an image."""
    return {"size": {"longest_edge": tiles * TILE}, "max_image_size": {"longest_edge": TILE}, **options}


def idefics3_processor(tiles: int = 2, **options: Any) -> Any:
    images = Idefics3ImageProcessorPil(**_sizes(tiles, options))
    return Idefics3Processor(images, tokenizer(*COMMON, *SPELLED_OUT), image_seq_len=SIDE * SIDE)


def smolvlm_processor(tiles: int = 3, **options: Any) -> Any:
    images = SmolVLMImageProcessorPil(**_sizes(tiles, options))
    return image_only(SmolVLMProcessor)(images, tokenizer(*COMMON, *WHOLE), image_seq_len=SIDE * SIDE)


class SlowIdefics3(SlowLlava):
    """The text of the prompt says how many rows and columns of tiles an image has; every token is placed by hand."""

    modeling: Any = modeling_idefics3
    special: tuple[str, ...] = SPELLED_OUT

    def text_model(self, model: Any) -> Any:
        return model.model.text_model

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        base, tokens = self.model.model, SIDE * SIDE
        with eager_attention(self.modeling, base.vision_model) as seen:
            output = base.get_image_features(shown.pixel_values, shown.pixel_attention_mask, return_dict=True)
        spans = torch.cat(list(output.pooler_output))
        keys = tokens_of_patches(seen[-1].keys, fold=base.connector.scale_factor).flatten(0, 1)
        encoded, first = [], 0
        for rows, columns in tiles_of_images(self.text(shown)):
            count = (rows * columns + 1) * tokens
            own = slice(first, first + count)
            content = torch.tensor(_reading_order(rows, columns))
            encoded.append((spans[own], content, affinity(keys[own][content], spans[own][content])))
            first += count
        return encoded

    def text(self, shown: Any) -> str:
        return tokenizer(*COMMON, *self.special).decode(shown.input_ids[0].tolist())


class SlowSmolVLM(SlowIdefics3):
    modeling = modeling_smolvlm
    special = WHOLE


def tiles_of_images(text: str) -> list[tuple[int, int]]:
    """(rows, columns) of tiles before the global view of every image in a prompt."""
    before_views = text.split("<global-img>")[:-1]
    counts = []
    for part in before_views:
        cells = [(0, 0), *((int(row), int(column)) for row, column in re.findall(r"<row_(\d)_col_(\d)>", part))]
        counts.append(max(cells))
    return counts


def _reading_order(rows: int, columns: int) -> list[int]:
    """Where the tokens of the high-resolution view, row by row, and then of the global one stand in the prompt."""
    order = []
    for y in range(rows * SIDE):
        for x in range(columns * SIDE):
            tile = y // SIDE * columns + x // SIDE
            order.append(tile * SIDE**2 + y % SIDE * SIDE + x % SIDE)
    first = rows * columns * SIDE**2
    return [*order, *range(first, first + SIDE**2)]


class NestedCase(Case):
    """Its processor wants the images of several prompts in a list for each."""

    def encode(self, prompts: list[str], images: list[Any]) -> Any:
        rest = iter(images)
        nested = [list(islice(rest, text.count("{image}"))) for text in prompts]
        texts = [text.replace("{image}", self.image) for text in prompts]
        return self.processor()(images=nested if images else None, text=texts, padding=True, return_tensors="pt")


TURN = "User:{}<end_of_utterance>\nAssistant:"
IDEFICS3 = NestedCase(
    name="idefics3",
    family="idefics3",
    model_class="Idefics3ForConditionalGeneration",
    build=partial(idefics3, layers=8),
    processor=idefics3_processor,
    image="<image>",
    turn=TURN,
    slow=SlowIdefics3,
)
SMOLVLM = NestedCase(
    name="smolvlm",
    family="smolvlm",
    model_class="SmolVLMForConditionalGeneration",
    build=partial(smolvlm, layers=8),
    processor=smolvlm_processor,
    image="<image>",
    turn=TURN,
    slow=SlowSmolVLM,
)
CASES = (IDEFICS3, SMOLVLM)
