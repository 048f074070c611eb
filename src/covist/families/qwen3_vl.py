"""Qwen3-VL, dense or mixture-of-experts: DeepStack features for the first decoder layers, interleaved 3-D positions."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from covist.errors import CovistError
from covist.families.qwen import QwenFamily
from covist.families.registry import register_family
from covist.plan import Geometry

DENSE = Geometry("qwen3-vl-8b", 36, 4096, 12288, 32, 8, tokens=1024, budgets=(512, 256, 128), head_dim=128)
EXPERTS = replace(DENSE, intermediate=768, experts=128, active_experts=8)


@register_family
class Qwen3VL(QwenFamily):
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

    def __init__(self, model: nn.Module):
        super().__init__(model)
        levels, layers = len(self.base.visual.deepstack_visual_indexes), len(self.decoder.layers)
        if levels >= layers:
            raise CovistError(
                f"{levels} DeepStack levels for {layers} decoder layers: the features of a level enter the next layer, "
                "so there must be more layers than levels"
            )
