"""Qwen2.5-VL: most blocks of the tower see windows, and the tower orders patches by window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from covist.contract.profile import narrowed
from covist.errors import CovistError
from covist.families.qwen_tower import PLACEHOLDERS, QwenTowerFamily
from covist.families.registry import register_family
from covist.plan import Geometry


@register_family
class Qwen25VL(QwenTowerFamily):
    name = "qwen2.5-vl"
    model_classes = ("Qwen2_5_VLForConditionalGeneration",)
    processor = "Qwen2_5_VLProcessor"
    encoder_signal = "incoming attention of the last full-attention block"
    token_count = "one per 28 x 28 pixels"
    presets = (
        Geometry("qwen2.5-vl-7b", 28, 3584, 18944, 28, 4, tokens=1296, budgets=(512, 256, 128)),
        Geometry("qwen2.5-vl-3b", 36, 2048, 11008, 16, 2, tokens=1296, budgets=(512, 256, 128)),
    )
    shallow_tower = {"depth": 1, "fullatt_block_indexes": [0]}

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {"depth": 32, "hidden_size": 80 * heads, "intermediate_size": round(3420 * scale), "num_heads": heads}

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        from transformers import Qwen2_5_VLConfig

        tower = {"out_hidden_size": text["hidden_size"], **tower}
        return Qwen2_5_VLConfig(vision_config=tower, text_config={**text, **cls.rotary_sections}, **PLACEHOLDERS)

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
    def evidence_block(self) -> Any:
        tower = self.base.visual
        return tower.blocks[max(tower.fullatt_block_indexes)]

    @property
    def global_blocks(self) -> Sequence[int]:
        return self.base.visual.fullatt_block_indexes

    def order(self, grid: Tensor) -> Tensor:
        # imported here, because plans import the family modules too and do not need transformers
        from transformers.vision_utils import get_vision_window_index

        tower = self.base.visual
        in_windows, _ = get_vision_window_index(
            grid[None], tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        return in_windows.argsort()
