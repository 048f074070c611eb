"""Pixtral: LLaVA's class with a Pixtral vision tower, every patch a token."""

from __future__ import annotations

from covist.families.pixtral_tower import PixtralTowerFamily
from covist.families.registry import register_family


@register_family
class Pixtral(PixtralTowerFamily):
    name = "pixtral"
    model_classes = ("LlavaForConditionalGeneration",)
    select_strategy = "full"
