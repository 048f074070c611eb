"""Pixtral: LLaVA's class with a Pixtral vision tower; every patch is a token."""

from __future__ import annotations

from typing import Any

from covist.families.pixtral_tower import IMAGE, PixtralTowerFamily
from covist.families.registry import register_family
from covist.plan import Geometry


@register_family
class Pixtral(PixtralTowerFamily):
    name = "pixtral"
    model_classes = ("LlavaForConditionalGeneration",)
    select_strategy = "full"
    token_count = "one per 16 x 16 pixels, plus row breaks"
    presets = (  # 1024 x 1024 pixels, the largest image that it accepts
        Geometry("pixtral-12b", 40, 5120, 14336, 32, 8, 4096, markers=63, budgets=(1024, 512, 256), head_dim=128),
    )
    published_patch = 16

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        from transformers import LlavaConfig

        return LlavaConfig(
            vision_config=tower,
            text_config={"model_type": "mistral", "sliding_window": None, **text},
            image_token_index=IMAGE,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
