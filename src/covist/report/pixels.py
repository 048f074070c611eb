"""The image as the encoder saw it, reassembled for display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covist.grid import Grid


@dataclass(frozen=True)
class Preprocessing:
    """The parts of a processor's work on an image that matter for displaying the image again.

    mean, std: with which it normalised each channel of an image in [0, 1]; None if unknown.
    center_crop: whether it crops the image to the central square.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    center_crop: bool = False

    @classmethod
    def of(cls, processor: Any | None) -> Preprocessing:
        """Read a processor's settings; a tokenizer or None has none for images."""
        images = getattr(processor, "image_processor", None)
        crop = bool(getattr(images, "do_center_crop", False))
        mean, std = getattr(images, "image_mean", None), getattr(images, "image_std", None)
        if mean is None or std is None or not getattr(images, "do_rescale", True):
            return cls(center_crop=crop)
        if not getattr(images, "do_normalize", True):
            mean, std = (0.0,) * 3, (1.0,) * 3
        return cls(tuple(mean), tuple(std), crop)

    def in_range(self, pixels: Tensor) -> Tensor | None:
        """Encoder input [..., 3, values] as it was between 0 and 1; None if mean and deviation are unknown."""
        if self.mean is None or self.std is None:
            return None
        std, mean = (torch.tensor(part, device=pixels.device)[:, None] for part in (self.std, self.mean))
        return pixels.float() * std + mean

    def undo(self, pixels: Tensor) -> Tensor:
        """Encoder input [3, h, w] -> [h, w, 3] uint8 on the CPU.

        If mean and deviation are unknown, the darkest value becomes black and the brightest white.
        """
        pixels = pixels.detach().cpu().float()
        if self.mean is not None and self.std is not None:
            shown = pixels * torch.tensor(self.std)[:, None, None] + torch.tensor(self.mean)[:, None, None]
        else:
            low, high = pixels.min(), pixels.max()
            shown = (pixels - low) / (high - low).clamp(min=1e-12)
        return (255 * shown.clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0).contiguous()


def patches_of_tiles(tiles: Tensor, side: int) -> Tensor:
    """Square tiles [tiles, 3, h, w] of side x side patches -> [tiles * side * side, 3, p, p], tile by tile."""
    patch = tiles.shape[-1] // side
    used = tiles[..., : side * patch, : side * patch]  # a convolution ignores an incomplete last patch
    cells = used.unflatten(2, (side, patch)).unflatten(4, (side, patch))  # [tiles, 3, side, p, side, p]
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def lay_out(cells: Tensor, grid: Grid) -> list[Tensor]:
    """The pixels of each token [N, 3, p, p] -> one image [3, rows * p, columns * p] per view of the grid."""
    return [view.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2) for view in grid.split(cells)]
