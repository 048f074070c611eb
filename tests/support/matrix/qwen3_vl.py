"""Qwen3-VL, dense and of experts: small models of the real classes with the real processor, and the slow reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
)

from support.families import lively
from support.matrix.qwen2_vl import TOKENS, SlowQwen2, case, processor_of, text_config

VISION = {
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
    config = Qwen3VLConfig(
        vision_config=VISION, text_config=text_config(layers, kv_heads, [4, 2, 2], changes), **TOKENS
    )
    torch.manual_seed(seed)
    return _with_lively_norms(Qwen3VLForConditionalGeneration(config).eval())


def qwen3_vl_moe(layers: int = 5, kv_heads: int = 2, seed: int = 0, **text: Any) -> Any:
    """The same with two of four experts for every token."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16, **text}
    config = Qwen3VLMoeConfig(
        vision_config=VISION, text_config=text_config(layers, kv_heads, [4, 2, 2], experts), **TOKENS
    )
    torch.manual_seed(seed)
    return _with_lively_norms(Qwen3VLMoeForConditionalGeneration(config).eval())


@torch.no_grad()
def _with_lively_norms(model: Any) -> Any:
    for layer in model.model.language_model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.weight.uniform_(-1.5, 1.5)
    return lively(model)


def qwen3_vl_processor() -> Any:
    return processor_of(Qwen3VLProcessor, patch=16, fewest=30)


class SlowQwen3(SlowQwen2):
    """DeepStack features, gains with the weights of the norms, and the model's own layers, so its own queries and keys.

    Frequencies go round the axes until an axis has used up its section; what is left belongs to time.
    """

    def __init__(self, model: Any, pro: bool):
        super().__init__(model, pro)
        left = list(model.config.text_config.rope_parameters["mrope_section"])
        axes = []
        for number in range(len(self.theta)):
            axis = number % 3 if left[number % 3] > 0 else 0
            left[axis] -= 1
            axes.append(axis)
        self.axes = np.array(axes)

    def rows(self, block: Any, kind: str, heads: int) -> np.ndarray:
        gamma = getattr(block, f"{kind}_norm").weight.detach().double().numpy()
        return gamma[:, None] * super().rows(block, kind, heads)

    def companions(self, shown: Any) -> list[dict[int, np.ndarray]]:
        levels = self.model.model.get_image_features(shown.pixel_values, shown.image_grid_thw).deepstack_features
        return [
            {level + 1: features.double().numpy() for level, features in enumerate(image)}
            for image in zip(*levels, strict=True)
        ]

    def _layer(self, layer: Any, hidden: Tensor, angles: np.ndarray, bias: Tensor) -> Tensor:
        both = torch.from_numpy(np.concatenate([angles, angles], axis=-1))[None]
        rotary = both.cos().float(), both.sin().float()
        return layer(hidden[None], attention_mask=bias[None], position_embeddings=rotary)[0]


CASES = (
    case("qwen3-vl", "grouped-query", qwen3_vl, qwen3_vl_processor, SlowQwen3),
    case("qwen3-vl", "of experts", qwen3_vl_moe, qwen3_vl_processor, SlowQwen3, kv_heads=4, seed=3),
)


def qwen3_vl_inputs(prompts: list[str], images: list[Any]) -> Any:
    return CASES[0].encode(prompts, images)
