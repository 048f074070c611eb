"""LLaVA-NeXT: a base view and an unpadded high-resolution grid per image, with a newline token after every grid row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.budget import Budget, Count
from covist.contract.signals import ImageSignals
from covist.devices import to_device
from covist.families.clip_tower import ClassTokenRecord, ClipTowerFamily, patches_per_side, read_tiles
from covist.families.projected import TowerOutput
from covist.families.registry import register_family
from covist.grid import Grid
from covist.plan import Geometry

NEWLINE = -1
HOST = torch.device("cpu")


@dataclass(frozen=True)
class PackedLayout:
    """Where the tokens of an image span come from."""

    grid: Grid
    content: Tensor  # [n] bool, False for newlines, on the host
    pack: Tensor  # [N] index of each content token in the flattened (tiles, patches)


def layout_of(sources: Tensor, side: int) -> PackedLayout:
    """The layout of a span, given the patch number or NEWLINE of each token [n]; a tile has side x side patches."""
    content = sources != NEWLINE
    views = [(side, side)]
    high_resolution = int(content.sum()) - side * side
    if high_resolution:  # unpadding may leave nothing of an extremely long and narrow image
        rows = int((~content).sum())
        views.append((rows, high_resolution // rows))
    return PackedLayout(Grid(tuple(views)), content, sources[content])


@register_family
class LlavaNext(ClipTowerFamily):
    name = "llava-next"
    model_classes = ("LlavaNextForConditionalGeneration",)
    token_count = "up to 2880, plus newlines"
    default_budget: ClassVar[Budget] = Count(64)
    presets = (
        Geometry("llava-next-7b", 32, 4096, 11008, 32, 32, tokens=2880, markers=48, budgets=(640, 320, 160), tiles=5),
    )

    def images(self, output: TowerOutput[ClassTokenRecord]) -> list[ImageSignals]:
        signals, first_tile = [], 0
        pixels, side = output.arguments["pixel_values"], patches_per_side(self.model)
        sizes = torch.as_tensor(output.arguments["image_sizes"]).tolist()  # read together, since each read waits
        for number, (span, size) in enumerate(zip(output.spans, sizes, strict=True)):
            tiles = self._tiles(size)
            layout = self.packed_layout(size, tiles, output.features.device)
            of_image = slice(first_tile, first_tile + tiles)
            shown = pixels[number, :tiles] if pixels.ndim == 5 else pixels[of_image]  # [tiles, 3, h, w]
            signals.append(
                ImageSignals(
                    grid=layout.grid,
                    span=span.detach(),
                    content=layout.content,
                    read_pixels=partial(read_tiles, shown, side, layout.pack, layout.grid),
                    **self.tower_signals(output, of_image, layout.pack),
                )
            )
            first_tile += tiles
        return signals

    def packed_layout(self, size: Any, tiles: int, device: torch.device = HOST) -> PackedLayout:
        """Learn the layout of an image of `size` (height, width) by letting the model pack patch numbers."""
        side = patches_per_side(self.model)
        # float64 keeps every patch number exact
        numbers = torch.arange(tiles * side * side, dtype=torch.float64).view(tiles, side * side, 1)
        packed, _ = self.base.pack_image_features(
            [numbers], [size], vision_feature_select_strategy="default", image_newline=numbers.new_tensor([NEWLINE])
        )
        layout = layout_of(packed[0][:, 0].long(), side)
        return replace(layout, pack=to_device(layout.pack, device))

    def _tiles(self, size: Any) -> int:
        """How many tiles the tower encodes for an image: the base view and the cells of its grid."""
        # imported here, because it loads the whole model file, which reading the family's name does not need
        from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

        config = self.model.config
        return image_size_to_num_patches(size, config.image_grid_pinpoints, config.vision_config.image_size)
