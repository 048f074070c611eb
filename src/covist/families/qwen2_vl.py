"""Qwen2-VL: every block of the tower sees the whole image."""

from __future__ import annotations

from covist.families.qwen_tower import QwenTowerFamily
from covist.families.registry import register_family


@register_family
class Qwen2VL(QwenTowerFamily):
    name = "qwen2-vl"
    model_classes = ("Qwen2VLForConditionalGeneration",)
