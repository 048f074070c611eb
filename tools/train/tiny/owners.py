"""Which patch shows what."""

import numpy as np

from covist.tiny.scenes import PATCH, Scene, cover_of


def patch_owners(scene: Scene, patch: int = PATCH) -> np.ndarray:
    """For every patch, the index (from 1) of the thing that covers most of it; 0 for background."""
    side, grid = scene.look.side, scene.look.side // patch
    best = np.full((grid, grid), 0.12, dtype=np.float32)
    owners = np.zeros((grid, grid), dtype=np.uint8)
    for index, thing in enumerate(scene.things, start=1):
        rows, columns, cover = cover_of(thing, scene.look)
        canvas = np.zeros((side, side), dtype=np.float32)
        canvas[rows, columns] = np.maximum(cover, 0.5) if thing.char else cover
        share = canvas.reshape(grid, patch, grid, patch).mean((1, 3))
        owners[share > best] = index
        best = np.maximum(best, share)
    return owners
