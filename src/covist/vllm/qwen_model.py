"""What the Qwen-VL classes share: images of any size, positions on a grid, videos without compression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from covist.vllm.model import CompressedModel
from covist.vllm.processing import CompressedProcessor, Extent


class QwenProcessor(CompressedProcessor):
    """An image takes as many positions as its longer side has tokens."""

    def extents(self, processed: Mapping[str, Any]) -> list[Extent]:
        merge = self.info.get_hf_config().vision_config.spatial_merge_size
        sides = (processed["image_grid_thw"][:, 1:] // merge).tolist()
        return [Extent(rows * columns, positions=max(rows, columns)) for rows, columns in sides]


class QwenTowerModel(CompressedModel):
    """A model whose images are sequences of patches, one after another."""

    axes = 3

    def image_tokens(self, kwargs: dict[str, Any]) -> list[int]:
        return (kwargs["image_grid_thw"].prod(-1) // self.config.vision_config.spatial_merge_size**2).tolist()

    def part_of(self, kwargs: dict[str, Any], part: slice) -> dict[str, Any]:
        grids = kwargs["image_grid_thw"]
        ends = [0, *accumulate(grids.prod(-1).tolist())]
        patches = slice(ends[part.start], ends[part.stop])
        return {"pixel_values": kwargs["pixel_values"][patches], "image_grid_thw": grids[part]}

    def get_encoder_cudagraph_config(self) -> Any:
        """No graphs: they would bypass the reduction of images."""
        parent: Any = super()
        return replace(parent.get_encoder_cudagraph_config(), modalities=[])
