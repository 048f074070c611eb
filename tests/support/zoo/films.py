"""Videos of two frames, made of what makes images: one function per way of arriving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from support.zoo.visual import Seeds, flat, noise

Film = Callable[[Any], dict[str, Tensor]]
FRAMES = 2
ALIKE: Seeds = [[0, 3]]
"""Two images of one size."""
NAMES = {"pixel_values": "pixel_values_videos", "target_sizes": "target_sizes_videos"}


def frames_of(images: Callable[[Any, Seeds], dict[str, Tensor]]) -> Film:
    """Two images as a video, with a grid for both."""

    def film(config: Any) -> dict[str, Tensor]:
        given = images(config, ALIKE)
        made = {NAMES[name]: value for name, value in given.items() if name in NAMES}
        if "image_grid_thw" in given:
            made["video_grid_thw"] = given["image_grid_thw"][:1] * torch.tensor([FRAMES, 1, 1])
        if "image_merge_sizes" in given:
            made["video_merge_sizes"] = given["image_merge_sizes"][:1]
        if "image_position_ids" in given:
            made |= {"video_position_ids": given["image_position_ids"], "num_frames_per_video": torch.tensor([FRAMES])}
        return made

    return film


def stacked(config: Any) -> dict[str, Tensor]:
    """[videos, frames, 3, side, side]"""
    side = config.vision_config.image_size
    return {"pixel_values_videos": torch.stack([noise(seed, 3, side, side) for seed in flat(ALIKE)])[None]}


def in_pairs(config: Any) -> dict[str, Tensor]:
    """Frames that become one patch by two: [frames, 3, side, side] (Nemotron Omni)."""
    return {"pixel_values_videos": noise(0, 2 * FRAMES, 3, 32, 32)}


def pooled_frames(config: Any) -> dict[str, Tensor]:
    """Patches of every frame, and which of them become one token (Molmo2)."""
    side = config.vision_config.image_size[0] // config.vision_config.patch_size
    corner = torch.arange(side * side).view(side // 2, 2, side // 2, 2).permute(0, 2, 1, 3).reshape(-1, 4)
    return {
        "pixel_values_videos": noise(0, FRAMES, side * side, 3 * config.vision_config.patch_size**2),
        "video_token_pooling": torch.cat([corner + side * side * frame for frame in range(FRAMES)]),
        "video_grids": torch.tensor([[FRAMES, side // 2, side // 2]]),
    }
