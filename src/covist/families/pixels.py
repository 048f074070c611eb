"""Images as an encoder saw them, from the pixels that it was given in one of two common forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import isqrt
from typing import Any

from torch import Tensor

from covist.grid import Grid
from covist.report.pixels import lay_out

Shape = tuple[int, int]
ShownPixels = Callable[[slice, tuple[Shape, ...]], list[Tensor]]
"""(tokens of an image among all, rows and columns of its views) -> its views, [3, h, w] each."""


def shown_pixels(
    arguments: dict[str, Any], config: Any, views: Sequence[Shape], is_video: bool, encoded: Sequence[Tensor] = ()
) -> ShownPixels | None:
    """How to show images, given the arguments of their encoding and all their views; None if their form is unknown.

    `encoded` is what modules of the encoder were given: it may leave out images that only fill a batch.
    """
    pixels = arguments.get("pixel_values_videos" if is_video else "pixel_values")
    vision = getattr(config, "vision_config", None)
    if not isinstance(pixels, Tensor):
        return None
    if pixels.ndim == 2 and hasattr(vision, "patch_size") and hasattr(vision, "temporal_patch_size"):
        return _packed(pixels, vision, sum(rows * columns for rows, columns in views))
    given = pixels.flatten(0, -4) if pixels.ndim > 3 else pixels[None]
    fitting = (one for one in (given, *encoded) if one.ndim == 4 and one.shape[1] == 3 and len(one) == len(views))
    whole = next(fitting, None)
    return None if whole is None else _one_by_one(whole, views, _unpadded(arguments.get("image_sizes"), whole))


def _unpadded(sizes: Any, pixels: Tensor) -> list[Shape] | None:
    """Height and width of each view, if `sizes` says how a batch was padded to its largest images."""
    if not isinstance(sizes, Tensor) or sizes.shape != (len(pixels), 2):
        return None
    height, width = sizes.amax(0).tolist()
    return [(tall, wide) for tall, wide in sizes.tolist()] if (height, width) == pixels.shape[-2:] else None


def _one_by_one(pixels: Tensor, views: Sequence[Shape], sizes: list[Shape] | None) -> ShownPixels:
    """Of views [views, 3, h, w], which may be padded."""
    ends = list(accumulate(rows * columns for rows, columns in views))
    shapes = sizes or [(pixels.shape[-2], pixels.shape[-1])] * len(pixels)

    def read(tokens: slice, own: tuple[Shape, ...]) -> list[Tensor]:
        first = sum(end <= tokens.start for end in ends)
        shown = zip(pixels[first : first + len(own)], shapes[first : first + len(own)], strict=True)
        return [view[:, :height, :width].detach().cpu() for view, (height, width) in shown]

    return read


def _packed(pixels: Tensor, vision: Any, tokens_in_all: int) -> ShownPixels | None:
    """Of patches [patches, 3 * time * p * p] that are ordered token by token."""
    side, times = vision.patch_size, vision.temporal_patch_size
    each, left = divmod(len(pixels), tokens_in_all)
    merge = isqrt(each)
    if left or merge**2 != each or pixels.shape[1] != 3 * times * side**2:
        return None

    def read(tokens: slice, own: tuple[Shape, ...]) -> list[Tensor]:
        patches = pixels[tokens.start * each : tokens.stop * each].detach().cpu()
        # An image is one moment, repeated; a frame of a video covers a few moments, of which the first is shown.
        cells = patches.view(-1, merge, merge, 3, times, side, side)[:, :, :, :, 0]  # [N, merge, merge, 3, p, p]
        return lay_out(cells.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3), Grid(own))

    return read
