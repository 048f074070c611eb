"""Qwen2-VL: every block of the tower sees the whole image."""

from __future__ import annotations

from typing import Any

from covist.contract.profile import narrowed
from covist.families.qwen_tower import PLACEHOLDERS, QwenTowerFamily
from covist.families.registry import register_family
from covist.plan import Geometry


@register_family
class Qwen2VL(QwenTowerFamily):
    name = "qwen2-vl"
    model_classes = ("Qwen2VLForConditionalGeneration",)
    processor = "Qwen2VLProcessor"
    token_count = "one per 28 x 28 pixels"
    presets = (
        Geometry("qwen2-vl-7b", 28, 3584, 18944, 28, 4, tokens=1296, budgets=(512, 256, 128)),
        Geometry("qwen2-vl-2b", 28, 1536, 8960, 12, 2, tokens=1296, budgets=(512, 256, 128)),
    )
    shallow_tower = {"depth": 1}

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {"depth": 32, "embed_dim": 80 * heads, "num_heads": heads, "mlp_ratio": 4}

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        from transformers import Qwen2VLConfig

        tower = {"hidden_size": text["hidden_size"], **tower}
        return Qwen2VLConfig(vision_config=tower, text_config={**text, **cls.rotary_sections}, **PLACEHOLDERS)
