"""LLaVA-1.5: one square CLIP view per image, every patch a token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covist.contract.signals import EncoderLayer, ImageSignals
from covist.families.clip_tower import ClipTowerFamily, patches_per_side, read_tiles
from covist.families.registry import register_family
from covist.grid import Grid


@register_family
class Llava(ClipTowerFamily):
    name = "llava-1.5"
    model_classes = ("LlavaForConditionalGeneration",)

    def images(
        self,
        arguments: dict[str, Any],
        spans: Sequence[Tensor],
        captured: dict[int, tuple[EncoderLayer, Tensor]],
        features: Tensor,
    ) -> list[ImageSignals]:
        side = patches_per_side(self.model)
        pack = torch.arange(side * side, device=features.device)
        everything = torch.ones(side * side, dtype=torch.bool, device=features.device)
        grid, pixels = Grid(((side, side),)), arguments["pixel_values"]
        return [
            ImageSignals(
                grid=grid,
                span=span.detach(),
                content=everything,
                read_pixels=partial(read_tiles, pixels[index : index + 1], side, pack, grid),
                **self.tower_signals(captured, features, slice(index, index + 1), pack),
            )
            for index, span in enumerate(spans)
        ]
