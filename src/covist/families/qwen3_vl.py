"""Qwen3-VL, dense or mixture-of-experts: DeepStack features for the first decoder layers, interleaved 3-D positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from covist.contract.profile import narrowed
from covist.errors import CovistError
from covist.families.qwen_tower import PLACEHOLDERS, QwenTowerFamily, rotary_sections
from covist.families.registry import register_family
from covist.plan import Geometry

DENSE = Geometry("qwen3-vl-8b", 36, 4096, 12288, 32, 8, tokens=1024, budgets=(512, 256, 128), head_dim=128)
EXPERTS = replace(DENSE, intermediate=768, experts=128, active_experts=8)


@register_family
class Qwen3VL(QwenTowerFamily):
    name = "qwen3-vl"
    model_classes = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
    processor = "Qwen3VLProcessor"
    video_stand_in = "Qwen3Videos"
    token_count = "one per 32 x 32 pixels"
    presets = (
        DENSE,
        replace(DENSE, name="qwen3-vl-2b", layers=28, hidden=2048, intermediate=6144, heads=16),
        replace(DENSE, name="qwen3-vl-4b", hidden=2560, intermediate=9728),
        replace(DENSE, name="qwen3-vl-32b", layers=64, hidden=5120, intermediate=25600, heads=64),
        replace(EXPERTS, name="qwen3-vl-30b-a3b", layers=48, hidden=2048, kv_heads=4),
        replace(DENSE, name="qwen3-vl-8b-video", tokens=16 * 256, frames=16, budgets=(128, 64, 32)),
    )
    shallow_tower = {"depth": 3, "deepstack_visual_indexes": [0, 1, 2]}
    rotary_sections = rotary_sections(24, 20, 20)
    timestamps = True
    companion_arguments = ("visual_pos_masks", "deepstack_visual_embeds")

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads, small = narrowed(16, scale), geometry.name in ("qwen3-vl-2b", "qwen3-vl-4b")
        return {
            "depth": 24 if small else 27,
            "hidden_size": (64 if small else 72) * heads,
            "intermediate_size": round((4096 if small else 4304) * scale),
            "num_heads": heads,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17] if small else [8, 16, 24],
        }

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        from transformers import Qwen3VLConfig, Qwen3VLMoeConfig

        config_class = Qwen3VLMoeConfig if geometry.experts else Qwen3VLConfig
        tower = {"out_hidden_size": text["hidden_size"], **tower}
        return config_class(vision_config=tower, text_config={**text, **cls.rotary_sections}, **PLACEHOLDERS)

    def __init__(self, model: nn.Module):
        super().__init__(model)
        levels, layers = len(self.base.visual.deepstack_visual_indexes), len(self.decoder.layers)
        if levels >= layers:
            raise CovistError(
                f"{levels} DeepStack levels for {layers} decoder layers: the features of a level enter the next layer, "
                "so there must be more layers than levels"
            )

    def companions(self, output: Any, number: int) -> dict[int, Tensor]:
        """A level is added to the output of its decoder layer, that is, before the next layer."""
        levels = output.deepstack_features if hasattr(output, "deepstack_features") else output[-1]
        return {level + 1: images[number].detach() for level, images in enumerate(levels)}

    def rotary_axes(self) -> Sequence[int]:
        """Time, height and width alternate; after height and width have their sections, the rest belongs to time."""
        rotary = self.decoder.rotary_emb
        sections = rotary.mrope_section
        return [number % 3 if number < 3 * sections[number % 3] else 0 for number in range(len(rotary.inv_freq))]
