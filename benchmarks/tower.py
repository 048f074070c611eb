"""What leaving patches out before the vision tower saves: a page of text for a random Qwen3-VL.

    python benchmarks/tower.py [--scale 0.25] [--lines 24]

The page is drawn black on white, 1,024 tokens. The tower is that of Qwen3-VL-8B, narrowed by `--scale`. The ratio is of
two measurements in the same run: the encoding of the image with pixelprune, whose own time is in it, and without.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from common import interleaved
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import covist
from covist.bench.random_models import build_random

TEXT = "The quick brown fox jumps over the lazy dog while 42 tokens of blank paper wait for something to be read."


def page(side: int, lines: int) -> Image.Image:
    """Lines of text at the top of a white page, with a margin."""
    image = Image.new("RGB", (side, side), "white")
    drawing, font, left, step = ImageDraw.Draw(image), ImageFont.load_default(16), side // 10, 26
    for line in range(lines):
        drawing.text((left, left + step * line), TEXT[: 60 + 17 * line % 40], "black", font)
    return image


def packed(image: Image.Image, vision: Any) -> tuple[Tensor, Tensor]:
    """An image as rows of patches, those of a token next to each other, and its grid."""
    patch, merge = vision.patch_size, vision.spatial_merge_size
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 127.5 - 1
    side = pixels.shape[-1] // patch
    cells = pixels.reshape(3, side // merge, merge, patch, side // merge, merge, patch).permute(1, 4, 2, 5, 0, 3, 6)
    moments = cells.unsqueeze(5).expand(*[-1] * 5, vision.temporal_patch_size, -1, -1)
    return moments.reshape(side * side, -1), torch.tensor([[1, side, side]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.25, help="of the tower's width")
    parser.add_argument("--lines", type=int, default=24, help="of text on the page")
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    model = build_random("qwen3-vl-8b", given.scale, decoder={"num_hidden_layers": 4}).model
    vision = model.config.vision_config
    pixels, grid = packed(page(32 * vision.patch_size * vision.spatial_merge_size, given.lines), vision)
    rows = []
    handle = covist.compress(model, method="pixelprune", budget="100%")
    model.model.visual.blocks[0].register_forward_hook(lambda block, args, output: rows.append(len(output)))

    def plain() -> None:
        with handle.using(budget="none"):
            model.model.get_image_features(pixels, grid)

    seconds = interleaved(
        {"plain": plain, "pixelprune": lambda: model.model.get_image_features(pixels, grid)}, given.repetitions
    )
    encoded, whole = min(rows), max(rows)
    print(f"patches in the tower: {encoded} of {whole} ({encoded / whole:.1%})")
    print(f"encoding: {seconds['pixelprune']:.2f} s instead of {seconds['plain']:.2f} s")
    print(f"ratio: {seconds['pixelprune'] / seconds['plain']:.2f}")


if __name__ == "__main__":
    main()
