"""Visual arguments of random images, as processors of transformers would give them: one function per way of arriving.

A function takes the configuration of a model and the seeds of the images of each prompt. Images of different seeds have
different sizes where the class allows it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Seeds = list[list[int]]
SHAPES = ((8, 8), (6, 8), (8, 4))
"""Patches (height, width) of images of any size; by seed."""


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flat(seeds: Seeds) -> list[int]:
    return [seed for prompt in seeds for seed in prompt]


def shape_of(seed: int) -> tuple[int, int]:
    return SHAPES[seed % len(SHAPES)]


def square(config: Any, seeds: Seeds, name: str = "pixel_values", side: int | None = None) -> dict[str, Tensor]:
    """One crop of a fixed size per image: [images, 3, side, side]."""
    side = side or config.vision_config.image_size
    side = side if isinstance(side, int) else side[0]
    return {name: torch.stack([noise(seed, 3, side, side) for seed in flat(seeds)])}


def patches(config: Any, seeds: Seeds, time: int | None = None) -> dict[str, Tensor]:
    """All patches of all images in a row, with a grid per image: [patches, values]."""
    vision = config.vision_config
    time = time or getattr(vision, "temporal_patch_size", None) or vision.patch_temporal
    shapes = [shape_of(seed) for seed in flat(seeds)]
    values = 3 * time * vision.patch_size**2
    return {
        "pixel_values": torch.cat(
            [noise(seed, h * w, values) for seed, (h, w) in zip(flat(seeds), shapes, strict=True)]
        ),
        "image_grid_thw": torch.tensor([[1, h, w] for h, w in shapes]),
    }


def square_patches(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """The same with every patch as a small image: [patches, 3, patch, patch]."""
    arguments = patches(config, seeds, time=1)
    side = config.vision_config.patch_size
    return {**arguments, "pixel_values": arguments["pixel_values"].view(-1, 3, side, side)}


def padded_images(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Images of any size, padded to the largest: [images, 3, height, width]."""
    sizes = [tuple(side * config.vision_config.patch_size for side in shape_of(seed)) for seed in flat(seeds)]
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    pixels = torch.zeros(len(sizes), 3, height, width)
    for image, seed, (h, w) in zip(pixels, flat(seeds), sizes, strict=True):
        image[:, :h, :w] = noise(seed, 3, h, w)
    return {"pixel_values": pixels, "image_sizes": torch.tensor(sizes)}


def tiles(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """An overview and tiles of an image: [images, tiles, 3, side, side]."""
    side = config.vision_config.image_size
    sizes = [config.image_grid_pinpoints[seed % len(config.image_grid_pinpoints)] for seed in flat(seeds)]
    counts = [1 + (h // side) * (w // side) for h, w in sizes]
    pixels = torch.zeros(len(sizes), max(counts), 3, side, side)
    for image, seed, count in zip(pixels, flat(seeds), counts, strict=True):
        image[:count] = noise(seed, count, 3, side, side)
    return {"pixel_values": pixels, "image_sizes": torch.tensor(sizes)}


def by_prompt(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Images of every prompt together, prompts with fewer images filled up: [prompts, images, 3, side, side]."""
    side, most = config.vision_config.image_size, max(map(len, seeds))
    pixels = torch.zeros(len(seeds), most, 3, side, side)
    for row, own in zip(pixels, seeds, strict=True):
        for image, seed in zip(row, own, strict=False):
            image[:] = noise(seed, 3, side, side)
    there = (pixels != 0).any(2)
    return {"pixel_values": pixels, "pixel_attention_mask": there}


def packed(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Patches of every image, padded to the most: [images, patches, values]."""
    shapes = [shape_of(seed) for seed in flat(seeds)]
    values, most = 3 * config.vision_config.patch_size**2, max(h * w for h, w in shapes)
    pixels, mask = torch.zeros(len(shapes), most, values), torch.zeros(len(shapes), most, dtype=torch.long)
    for index, (seed, (h, w)) in enumerate(zip(flat(seeds), shapes, strict=True)):
        pixels[index, : h * w], mask[index, : h * w] = noise(seed, h * w, values), 1
    return {"pixel_values": pixels, "spatial_shapes": torch.tensor(shapes), "pixel_attention_mask": mask}


def strip(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """All patches of all images side by side: [1, 3, patch, patch * patches]."""
    side, shapes = config.vision_config.patch_size, [(2 * h, 2 * w) for h, w in map(shape_of, flat(seeds))]
    rows = [noise(seed, 3, side, side * h * w) for seed, (h, w) in zip(flat(seeds), shapes, strict=True)]
    return {"pixel_values": torch.cat(rows, -1)[None], "target_sizes": torch.tensor(shapes, dtype=torch.int32)}
