"""Rendered scenes, kept on disk as memory maps so that training never waits for the renderer."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covist.tiny.glyphs import DIGITS, LETTERS
from covist.tiny.scenes import COLORS, GRID, PATCH, ROLES, SHAPES, SIZES, Scene, patch_owners, render, sample_scene

PATCH_VALUES = 3 * PATCH * PATCH
MOST_THINGS = 24
# what a patch shows, as classes from 1 (0: nothing of the sort)
CLASSES = {
    "color": (*COLORS, "grey"),
    "shape": SHAPES,
    "size": tuple(SIZES),
    "char": tuple(DIGITS + LETTERS),
    "role": ROLES,
}
COLUMNS = (*CLASSES, "x", "y", "object")


def _describe(scene: Scene) -> np.ndarray:
    """Things as rows [MOST_THINGS + 1, columns]; row 0 is the background. A decoy is grey and has no shape."""
    table = np.zeros((MOST_THINGS + 1, len(COLUMNS)), dtype=np.int16)
    for row, thing in zip(table[1:], scene.things, strict=False):
        for column, (name, values) in enumerate(CLASSES.items()):
            value = getattr(thing, name)
            decoyed = thing.kind == "decoy" and name != "color"
            row[column] = 0 if decoyed or not value else values.index(value) + 1
        row[-3:] = thing.x, thing.y, thing.kind == "object"
    return table


def to_patches(pixels: np.ndarray) -> np.ndarray:
    """[96, 96, 3] -> [576, 48], every patch in the channel, row, column order of the tower's convolution."""
    cells = pixels.reshape(GRID, PATCH, GRID, PATCH, 3)
    return cells.transpose(0, 2, 4, 1, 3).reshape(GRID * GRID, PATCH_VALUES)


class SceneBank:
    """`count` scenes from consecutive seeds; rendered on first use, then read from `folder`."""

    def __init__(self, folder: Path, first_seed: int, count: int):
        self.seeds = range(first_seed, first_seed + count)
        shapes = {
            "patches": ((count, GRID * GRID, PATCH_VALUES), np.uint8),
            "owners": ((count, GRID * GRID), np.uint8),
            "tables": ((count, MOST_THINGS + 1, len(COLUMNS)), np.int16),
        }
        folder = folder / f"scenes-{first_seed}-{count}"
        complete = folder / "complete"
        mode = "r" if complete.exists() else "w+"
        folder.mkdir(parents=True, exist_ok=True)
        maps = {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", mode, dtype=dtype, shape=shape)
            for name, (shape, dtype) in shapes.items()
        }
        self.patches, self.owners, self.tables = maps["patches"], maps["owners"], maps["tables"]
        if not complete.exists():
            self._render()
            complete.touch()

    def __len__(self) -> int:
        return len(self.seeds)

    def _render(self) -> None:
        for index, seed in enumerate(self.seeds):
            scene = sample_scene(seed)
            self.patches[index] = to_patches(render(scene))
            self.owners[index] = patch_owners(scene).reshape(-1)
            self.tables[index] = _describe(scene)

    def scene(self, index: int) -> Scene:
        return sample_scene(self.seeds[index])

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Patches as the processor would scale them [n, 576, 48], owners [n, 576], tables [n, things, columns]."""
        patches = torch.from_numpy(self.patches[indices]).float().div_(255).sub_(0.5).div_(0.25)
        return patches, torch.from_numpy(self.owners[indices]).long(), torch.from_numpy(self.tables[indices]).long()
