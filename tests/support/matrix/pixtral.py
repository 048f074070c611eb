"""Pixtral: small models of LLaVA's class with the tower, the real processor, and a slow reading of the tower."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration, MistralConfig, PixtralVisionConfig
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from covist.families.processors import without_torchvision
from support.case import Case
from support.families import lively, tokenizer, vocabulary
from support.slow_llava import affinity
from support.slow_text_model import SlowTextModel

MARKS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
TOKENS = vocabulary(*MARKS)
PATCH = 16


def tower_config(patch: int = PATCH) -> PixtralVisionConfig:
    return PixtralVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=20 * patch,
        patch_size=patch,
        rope_parameters={"rope_type": "axial", "rope_theta": 10000.0},
    )


def mistral_config(layers: int, kv_heads: int, **text: Any) -> MistralConfig:
    """Heads of 16 in a width of 32, as wide in proportion as those of Mistral Small."""
    return MistralConfig(
        **{
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "head_dim": 16,
            "sliding_window": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            **text,
        }
    )


def pixtral(layers: int = 4, kv_heads: int = 2, seed: int = 0, **text: Any) -> LlavaForConditionalGeneration:
    config = LlavaConfig(
        vision_config=tower_config(),
        text_config=mistral_config(layers, kv_heads, **text),
        image_token_index=TOKENS["[IMG]"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    torch.manual_seed(seed)
    return lively(LlavaForConditionalGeneration(config).eval())


def pixtral_processor(patch: int = PATCH, merge: int = 1) -> Any:
    processor = without_torchvision(transformers.PixtralProcessor)
    return processor(
        PixtralImageProcessorPil(size={"longest_edge": 20 * patch}, patch_size={"height": patch, "width": patch}),
        tokenizer(*MARKS),
        patch_size=patch,
        spatial_merge_size=merge,
    )


class SlowPixtral(SlowTextModel):
    """Every image goes through the tower alone; the keys of a token are the mean of those of its patches."""

    merge = 1

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        encoded = []
        for pixels, (height, width) in zip(shown.pixel_values, shown.image_sizes.tolist(), strict=True):
            span, keys = self.alone(pixels[:, :height, :width], height, width)
            encoded.append((span, torch.ones(len(span), dtype=torch.bool), affinity(keys, span)))
        return encoded

    def alone(self, pixels: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Embeddings [N, d] and keys [N, k] of one image."""
        base = self.model.model
        states = base.vision_tower(pixels[None], output_hidden_states=True).hidden_states
        last = base.vision_tower.transformer.layers[-1]
        keys = last.attention.k_proj(last.attention_norm(states[-2]))[0]
        rows, columns = height // base.vision_tower.patch_size, width // base.vision_tower.patch_size
        tokens = []
        for row in range(0, rows, self.merge):
            for column in range(0, columns, self.merge):
                own = [(row + y) * columns + column + x for y in range(self.merge) for x in range(self.merge)]
                tokens.append(keys[own].mean(0))
        return self.projected(states[-1], height, width), torch.stack(tokens)

    def projected(self, features: Tensor, height: int, width: int) -> Tensor:
        return self.model.model.multi_modal_projector(features)[0]


def case(name: str, **options: Any) -> Case:
    return Case(
        name=name,
        family="pixtral",
        model_class="LlavaForConditionalGeneration",
        build=partial(pixtral, layers=8, **options),
        processor=pixtral_processor,
        image="[IMG]",
        turn="USER: {} ASSISTANT:",
        slow=SlowPixtral,
    )


CASES = (case("pixtral"),)
