"""Qwen2-VL: every block of the tower sees the whole image."""

from __future__ import annotations

from covist.families.qwen import QwenFamily
from covist.families.registry import register_family
from covist.plan import Geometry


@register_family
class Qwen2VL(QwenFamily):
    name = "qwen2-vl"
    model_classes = ("Qwen2VLForConditionalGeneration",)
    processor = "Qwen2VLProcessor"
    token_count = "one per 28 x 28 pixels"
    presets = (
        Geometry("qwen2-vl-7b", 28, 3584, 18944, 28, 4, tokens=1296, budgets=(512, 256, 128)),
        Geometry("qwen2-vl-2b", 28, 1536, 8960, 12, 2, tokens=1296, budgets=(512, 256, 128)),
    )
