"""Qwen3-VL: small models of the real classes with the real image processor, and the slow reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families.processors import image_only
from support.case import Case
from support.families import lively, tokenizer
from support.matrix.qwen2_vl import IMAGE, TOKENS, TURN, SlowQwen2, text_config

VISION3 = {
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
        vision_config=VISION3, text_config=text_config(layers, kv_heads, [4, 2, 2], changes), **TOKENS
    )
    torch.manual_seed(seed)
    return _with_lively_norms(Qwen3VLForConditionalGeneration(config).eval())


def qwen3_vl_moe(layers: int = 5, kv_heads: int = 2, seed: int = 0, **text: Any) -> Any:
    """The same with two of four experts for every token."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16, **text}
    config = Qwen3VLMoeConfig(
        vision_config=VISION3, text_config=text_config(layers, kv_heads, [4, 2, 2], experts), **TOKENS
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
    """32 pixels per token and at least 30 tokens per image."""
    size = {"shortest_edge": 30 * 32**2, "longest_edge": 1296 * 32**2}
    return image_only(Qwen3VLProcessor)(Qwen2VLImageProcessorPil(size=size, patch_size=16), tokenizer())


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


def case(name: str, model_class: type, build: Callable[..., Any], **options: Any) -> Case:
    return Case(
        name=name,
        family="qwen3-vl",
        model_class=model_class.__name__,
        build=partial(build, layers=8, **options),
        processor=qwen3_vl_processor,
        image=IMAGE,
        turn=TURN,
        slow=SlowQwen3,
    )


CASES = (
    case("qwen3-vl grouped-query", Qwen3VLForConditionalGeneration, qwen3_vl),
    case("qwen3-vl of experts", Qwen3VLMoeForConditionalGeneration, qwen3_vl_moe, kv_heads=4, seed=3),
)


def qwen3_vl_inputs(prompts: list[str], images: list[Any]) -> Any:
    return CASES[0].encode(prompts, images)
