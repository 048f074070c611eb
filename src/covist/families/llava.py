"""LLaVA-1.5: one square CLIP view per image, every patch a token."""

from __future__ import annotations

from functools import partial

import torch

from covist.budget import Count
from covist.contract.signals import ImageSignals
from covist.families.clip_tower import ClassTokenRecord, ClipTowerFamily, patches_per_side, read_tiles
from covist.families.projected import TowerOutput
from covist.families.registry import register_family
from covist.grid import Grid
from covist.plan import Geometry


@register_family
class Llava(ClipTowerFamily):
    name = "llava-1.5"
    model_classes = ("LlavaForConditionalGeneration",)
    token_count = "576"
    default_budget = Count(64)
    presets = (
        Geometry("llava-1.5-7b", 32, 4096, 11008, 32, 32, tokens=576, budgets=(192, 128, 64)),
        Geometry("llava-1.5-13b", 40, 5120, 13824, 40, 40, tokens=576, budgets=(192, 128, 64)),
    )

    def images(self, output: TowerOutput[ClassTokenRecord]) -> list[ImageSignals]:
        side = patches_per_side(self.model)
        pack = torch.arange(side * side, device=output.features.device)
        everything = torch.ones(side * side, dtype=torch.bool)
        grid, pixels = Grid(((side, side),)), output.arguments["pixel_values"]
        return [
            ImageSignals(
                grid=grid,
                span=span.detach(),
                content=everything,
                read_pixels=partial(read_tiles, pixels[index : index + 1], side, pack, grid),
                **self.tower_signals(output, slice(index, index + 1), pack),
            )
            for index, span in enumerate(output.spans)
        ]
