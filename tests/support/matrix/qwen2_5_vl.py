"""Qwen2.5-VL: small models of the real class with the real image processor, and the slow reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from covist.families.processors import image_only
from support.case import Case
from support.families import lively, tokenizer
from support.matrix.qwen2_vl import IMAGE, TOKENS, TURN, SlowQwen2, images_at_28_pixels, text_config


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
        text_config=text_config(layers, kv_heads, [1, 1, 2], text),
        **TOKENS,
    )
    torch.manual_seed(seed)
    return lively(Qwen2_5_VLForConditionalGeneration(config).eval())


def qwen_processor() -> Any:
    return image_only(Qwen2_5_VLProcessor)(images_at_28_pixels(), tokenizer())


class SlowQwen(SlowQwen2):
    """Tokens stand in windows, and the last block with full attention counts."""

    def block(self, tower: Any) -> Any:
        return tower.blocks[tower.fullatt_block_indexes[-1]]

    def places(self, grid: Tensor, tower: Any) -> list[int]:
        rows, columns = (int(grid[axis]) // 2 for axis in (1, 2))
        side = tower.window_size // (2 * tower.patch_size)
        tokens = [(row, column) for row in range(rows) for column in range(columns)]
        in_windows = sorted(tokens, key=lambda token: (token[0] // side, token[1] // side, token))
        return [in_windows.index(token) for token in tokens]


def case(name: str, **options: Any) -> Case:
    return Case(
        name=name,
        family="qwen2.5-vl",
        model_class="Qwen2_5_VLForConditionalGeneration",
        build=partial(qwen, layers=8, **options),
        processor=qwen_processor,
        image=IMAGE,
        turn=TURN,
        slow=SlowQwen,
    )


CASES = (case("qwen2.5-vl grouped-query"), case("qwen2.5-vl multi-head", kv_heads=4, seed=3))


def qwen_inputs(prompts: list[str], images: list[Any]) -> Any:
    return CASES[0].encode(prompts, images)
