"""Qwen2.5-VL: most blocks of the tower see windows; the evidence is that of the last one that sees whole images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from covist.errors import CovistError
from covist.families.qwen import QwenFamily
from covist.families.registry import register_family
from covist.plan import Geometry


@register_family
class Qwen25VL(QwenFamily):
    name = "qwen2.5-vl"
    model_classes = ("Qwen2_5_VLForConditionalGeneration",)
    processor = "Qwen2_5_VLProcessor"
    encoder_signal = "incoming attention of the last full-attention block"
    token_count = "one per 28 x 28 pixels"
    presets = (
        Geometry("qwen2.5-vl-7b", 28, 3584, 18944, 28, 4, tokens=1296, budgets=(512, 256, 128)),
        Geometry("qwen2.5-vl-3b", 36, 2048, 11008, 16, 2, tokens=1296, budgets=(512, 256, 128)),
    )

    def __init__(self, model: nn.Module):
        super().__init__(model)
        tower = self.base.visual
        full, depth = list(tower.fullatt_block_indexes), len(tower.blocks)
        if not full or not all(0 <= index < depth for index in full):
            raise CovistError(
                f"fullatt_block_indexes={full}: the vision tower has blocks 0 to {depth - 1}, and at least one of them "
                "must see the whole image"
            )

    @property
    def global_layers(self) -> Sequence[int]:
        return tuple(self.base.visual.fullatt_block_indexes)
