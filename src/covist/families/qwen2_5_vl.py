"""Qwen2.5-VL: most blocks of the tower see windows, in whose order it computes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.vision_utils import get_vision_window_index

from covist.errors import CovistError
from covist.families.qwen_tower import QwenTowerFamily
from covist.families.registry import register_family


@register_family
class Qwen25VL(QwenTowerFamily):
    name = "qwen2.5-vl"
    model_classes = ("Qwen2_5_VLForConditionalGeneration",)

    def __init__(self, model: nn.Module):
        super().__init__(model)
        tower = self.base.visual
        full, depth = list(tower.fullatt_block_indexes), len(tower.blocks)
        if not full or not all(0 <= index < depth for index in full):
            raise CovistError(
                f"fullatt_block_indexes={full}: the vision tower has blocks 0 to {depth - 1}, and one of them at least "
                "must see the whole image"
            )

    @property
    def evidence_block(self) -> Any:
        tower = self.base.visual
        return tower.blocks[max(tower.fullatt_block_indexes)]

    def order(self, grid: Tensor) -> Tensor:
        tower = self.base.visual
        in_windows, _ = get_vision_window_index(
            grid[None], tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        return in_windows.argsort()
