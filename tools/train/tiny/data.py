"""Rendered scenes, kept on disk as memory maps so that training does not wait for the renderer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covist.tiny.glyphs import DIGITS, LETTERS
from covist.tiny.scenes import COLORS, GRID, PATCH, ROLES, SHAPES, SIZES, Scene, render, sample_scene
from train.tiny.owners import patch_owners

PATCH_VALUES = 3 * PATCH * PATCH
# what a patch shows, as classes from 1 (0: none)
CLASSES = {
    "color": (*COLORS, "grey"),
    "shape": SHAPES,
    "size": tuple(SIZES),
    "char": tuple(DIGITS + LETTERS),
    "role": ROLES,
}
COLUMNS = (*CLASSES, "x", "y", "object")


def _describe(scene: Scene, most_things: int) -> np.ndarray:
    """Things as rows [most_things + 1, columns]; row 0 is the background. A decoy is grey and has no shape."""
    table = np.zeros((most_things + 1, len(COLUMNS)), dtype=np.int16)
    for row, thing in zip(table[1:], scene.things, strict=False):
        for column, (name, values) in enumerate(CLASSES.items()):
            value = getattr(thing, name)
            decoyed = thing.kind == "decoy" and name != "color"
            row[column] = 0 if decoyed or not value else values.index(value) + 1
        row[-3:] = thing.x, thing.y, thing.kind == "object"
    return table


def to_patches(pixels: np.ndarray) -> np.ndarray:
    """[96, 96, 3] -> [576, 48], every patch in the channel, row, column order of the tower's convolution."""
    grid = len(pixels) // PATCH
    cells = pixels.reshape(grid, PATCH, grid, PATCH, 3)
    return cells.transpose(0, 2, 4, 1, 3).reshape(grid * grid, PATCH_VALUES)


@contextmanager
def memory_maps(
    folder: Path, shapes: Mapping[str, tuple[tuple[int, ...], type]]
) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Arrays of some shapes and types in a folder, by name, and whether they are to be filled in this context."""
    complete = folder / "complete"
    empty = not complete.exists()
    folder.mkdir(parents=True, exist_ok=True)
    yield (
        {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+" if empty else "r", dtype=dtype, shape=shape)
            for name, (shape, dtype) in shapes.items()
        },
        empty,
    )
    complete.touch()


class SceneBank:
    """`count` scenes from consecutive seeds; rendered on first use, then read from `folder`.

    Subclasses for other scenes define how many views of an image the tower reads, and how many patches each has.
    """

    name = "scenes"
    views, view_patches = 1, GRID * GRID
    most_things = 24

    def __init__(self, folder: Path, first_seed: int, count: int):
        self.seeds = range(first_seed, first_seed + count)
        shapes = {
            "patches": ((count, self.views * self.view_patches, PATCH_VALUES), np.uint8),
            "owners": ((count, self.views * self.view_patches), np.uint8),
            "tables": ((count, self.most_things + 1, len(COLUMNS)), np.int16),
        }
        with memory_maps(folder / f"{self.name}-{first_seed}-{count}", shapes) as (maps, empty):
            self.patches, self.owners, self.tables = maps["patches"], maps["owners"], maps["tables"]
            if empty:
                self._render()

    def __len__(self) -> int:
        return len(self.seeds)

    def sample(self, seed: int) -> Scene:
        return sample_scene(seed)

    def draw(self, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
        """The patches of a scene that the tower sees, [views * view_patches, 48], and their owners."""
        return to_patches(render(scene)), patch_owners(scene).reshape(-1)

    def _render(self) -> None:
        for index, seed in enumerate(self.seeds):
            scene = self.sample(seed)
            self.patches[index], self.owners[index] = self.draw(scene)
            self.tables[index] = _describe(scene, self.most_things)

    def scene(self, index: int) -> Scene:
        return self.sample(self.seeds[index])

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Patches scaled as by the processor [n, t, 48], owners [n, t], tables [n, things, columns]."""
        patches = torch.from_numpy(self.patches[indices]).float().div_(255).sub_(0.5).div_(0.25)
        return patches, torch.from_numpy(self.owners[indices]).long(), torch.from_numpy(self.tables[indices]).long()
