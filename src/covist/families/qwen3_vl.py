"""Qwen3-VL, dense or of experts: DeepStack features for the first decoder layers, interleaved 3-D positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from covist.contract.profile import narrowed
from covist.errors import CovistError
from covist.families.qwen_tower import QwenTowerFamily
from covist.families.registry import register_family
from covist.plan import Geometry

AT_1024_PIXELS: dict[str, Any] = {"tokens": 1024, "budgets": (512, 256, 128), "head_width": 128}


@register_family
class Qwen3VL(QwenTowerFamily):
    name = "qwen3-vl"
    model_classes = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
    processor = "Qwen3VLProcessor"
    token_count = "one per 32 x 32 pixels"
    presets = (
        Geometry("qwen3-vl-8b", 36, 4096, 12288, 32, 8, **AT_1024_PIXELS),
        Geometry("qwen3-vl-2b", 28, 2048, 6144, 16, 8, **AT_1024_PIXELS),
        Geometry("qwen3-vl-4b", 36, 2560, 9728, 32, 8, **AT_1024_PIXELS),
        Geometry("qwen3-vl-32b", 64, 5120, 25600, 64, 8, **AT_1024_PIXELS),
        Geometry("qwen3-vl-30b-a3b", 48, 2048, 768, 32, 4, experts=128, active_experts=8, **AT_1024_PIXELS),
    )
    shallow_tower = {"depth": 3, "deepstack_visual_indexes": [0, 1, 2]}
    rotary_sections = (24, 20, 20)
    companion_arguments = ("visual_pos_masks", "deepstack_visual_embeds")

    @classmethod
    def config_class(cls, geometry: Geometry) -> str:
        return "Qwen3VLMoeConfig" if geometry.experts else "Qwen3VLConfig"

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        """2B and 4B have a smaller tower than the others."""
        small, heads = geometry.name in ("qwen3-vl-2b", "qwen3-vl-4b"), narrowed(16, scale)
        return {
            "depth": 24 if small else 27,
            "hidden_size": (64 if small else 72) * heads,
            "intermediate_size": round((4096 if small else 4304) * scale),
            "num_heads": heads,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "deepstack_visual_indexes": [5, 11, 17] if small else [8, 16, 24],
        }

    def __init__(self, model: nn.Module):
        super().__init__(model)
        levels, layers = len(self.base.visual.deepstack_visual_indexes), len(self.decoder.layers)
        if levels >= layers:
            raise CovistError(
                f"{levels} DeepStack levels for {layers} decoder layers: the features of a level enter the layer after "
                "its own, so that there must be more layers than levels"
            )

    def companions(self, output: Any, number: int) -> dict[int, Tensor]:
        """A level is added to what its decoder layer returns, that is before the next one."""
        levels = output.deepstack_features if hasattr(output, "deepstack_features") else output[-1]
        return {level + 1: images[number].detach() for level, images in enumerate(levels)}

    def rotary_axes(self) -> Sequence[int]:
        """Time, height and width take turns; time has what is left when height and width have had their share."""
        rotary = self.decoder.rotary_emb
        sections = rotary.mrope_section
        return [number % 3 if number < 3 * sections[number % 3] else 0 for number in range(len(rotary.inv_freq))]
