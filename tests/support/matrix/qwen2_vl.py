"""Qwen2-VL: small models of the real class and image processor, the slow reference, and what the others share."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families.processors import image_only
from support.case import Case
from support.families import VOCABULARY, lively, tokenizer
from support.slow_llava import SlowLlava, affinity

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TURN = "<|im_start|>user{}<|im_end|><|im_start|>assistant"
TOKENS = {
    f"{name}_token_id": VOCABULARY[f"<|{word}|>"]
    for name, word in (
        ("image", "image_pad"),
        ("video", "video_pad"),
        ("vision_start", "vision_start"),
        ("vision_end", "vision_end"),
    )
}


def text_config(layers: int, kv_heads: int, sections: list[int], changes: dict[str, Any]) -> dict[str, Any]:
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
        text_config=text_config(layers, kv_heads, [1, 1, 2], text),
        **TOKENS,
    )
    torch.manual_seed(seed)
    return lively(Qwen2VLForConditionalGeneration(config).eval())


def images_at_28_pixels() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1296})


def qwen2_vl_processor() -> Any:
    return image_only(Qwen2VLProcessor)(images_at_28_pixels(), tokenizer())


class SlowQwen2(SlowLlava):
    """Keys of the last block token by token, and the positions of the model's own `get_rope_index`."""

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

    def block(self, tower: Any) -> Any:
        return tower.blocks[-1]

    def places(self, grid: Tensor, tower: Any) -> list[int]:
        """Where the tokens of one image, in reading order, stand in the tower."""
        return list(range(int(grid.prod()) // 4))

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        return [
            (span, torch.ones(len(span), dtype=torch.bool), affinity(keys, span))
            for keys, span in self.keys_and_spans(shown)
        ]

    def keys_and_spans(self, shown: Any) -> list[tuple[Tensor, Tensor]]:
        tower, encoded, first = self.model.model.visual, [], 0
        for grid in shown.image_grid_thw:
            patches = int(grid.prod())
            seen = {}
            hook = self.block(tower).attn.qkv.register_forward_hook(
                lambda module, args, output, seen=seen: seen.update(qkv=output)
            )
            pixels = shown.pixel_values[first : first + patches]
            span = tower(pixels, grid_thw=grid[None], return_dict=True).pooler_output
            hook.remove()
            keys = seen["qkv"].chunk(3, dim=-1)[1].view(len(span), 4, -1).mean(1)
            encoded.append((keys[self.places(grid, tower)], span))
            first += patches
        return encoded


CASES = (
    Case(
        name="qwen2-vl grouped-query",
        family="qwen2-vl",
        model_class="Qwen2VLForConditionalGeneration",
        build=partial(qwen2_vl, layers=8),
        processor=qwen2_vl_processor,
        image=IMAGE,
        turn=TURN,
        slow=SlowQwen2,
    ),
)
