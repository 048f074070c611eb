"""Pixtral: LLaVA's class with a Pixtral vision tower; every patch is a token."""

from __future__ import annotations

from covist.families.pixtral_tower import PixtralTowerFamily
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
