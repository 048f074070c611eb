"""Qwen2.5-VL: small models of the real class with the real processor, and the slow reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families.processors import image_only
from support.case import Case
from support.families import VOCABULARY, lively, tokenizer
from support.slow_llava import SlowLlava, affinity


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


def qwen_processor() -> Any:
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1296})
    return image_only(Qwen2_5_VLProcessor)(images, tokenizer())


class SlowQwen(SlowLlava):
    """Keys of the last full-attention block token by token, and the positions of the model's own `get_rope_index`."""

    def __init__(self, model: Any, pro: bool):
        super().__init__(model, pro)
        sections = model.config.text_config.rope_parameters["mrope_section"]
        self.axes = np.repeat(np.arange(3), sections)

    def positions(self, ids: list[int], shown: Any) -> np.ndarray:
        length = shown.input_ids.shape[1]
        prompt, _ = self.model.model.get_rope_index(
            shown.input_ids, shown.mm_token_type_ids, image_grid_thw=shown.image_grid_thw
        )
        generated = prompt.max() + 1 + torch.arange(len(ids) - length)
        return torch.cat([prompt[:, 0].T, generated[:, None].expand(-1, 3)]).double().numpy()

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        tower, encoded, first = self.model.model.visual, [], 0
        for grid in shown.image_grid_thw:
            patches = int(grid.prod())
            seen = {}
            block = tower.blocks[tower.fullatt_block_indexes[-1]].attn
            hook = block.qkv.register_forward_hook(lambda module, args, output, seen=seen: seen.update(qkv=output))
            pixels = shown.pixel_values[first : first + patches]
            span = tower(pixels, grid_thw=grid[None], return_dict=True).pooler_output
            hook.remove()
            keys = seen["qkv"].chunk(3, dim=-1)[1].view(len(span), 4, -1).mean(1)
            content = torch.ones(len(span), dtype=torch.bool)
            encoded.append((span, content, affinity(keys[_window_places(grid, tower)], span)))
            first += patches
        return encoded


def _window_places(grid: Tensor, tower: Any) -> list[int]:
    """Where the tokens of one image, in reading order, stand among the windows."""
    rows, columns = (int(grid[axis]) // 2 for axis in (1, 2))
    side = tower.window_size // (2 * tower.patch_size)
    tokens = [(row, column) for row in range(rows) for column in range(columns)]
    in_windows = sorted(tokens, key=lambda token: (token[0] // side, token[1] // side, token))
    return [in_windows.index(token) for token in tokens]


def case(name: str, **options: Any) -> Case:
    return Case(
        name=name,
        family="qwen2.5-vl",
        build=partial(qwen, layers=8, **options),
        processor=qwen_processor,
        image="<|vision_start|><|image_pad|><|vision_end|>",
        turn="<|im_start|>user{}<|im_end|><|im_start|>assistant",
        slow=SlowQwen,
    )


CASES = (case("qwen2.5-vl grouped-query"), case("qwen2.5-vl multi-head", kv_heads=4, seed=3))


def qwen_inputs(prompts: list[str], images: list[Any]) -> Any:
    return CASES[0].encode(prompts, images)
