"""What LLaVA-NeXT sees of an image: a base view and 2x2 tiles, and the order of their patches in the prompt."""

import numpy as np
from PIL import Image

from covist.tiny.hd.scenes import HD_SIDE, MOST_DECOYS, MOST_OBJECTS, sample_hd_scene
from covist.tiny.scenes import PATCH, ROLES, Scene, scene_image
from train.tiny.data import SceneBank, to_patches
from train.tiny.owners import patch_owners

TILE_SIDE = 64
GRID = HD_SIDE // PATCH  # patches per side of the tiles together
VIEW_GRID = TILE_SIDE // PATCH  # patches per side of one view
VIEWS = 5  # the base view and four tiles
VIEW_PATCHES = VIEW_GRID * VIEW_GRID
NEWLINE = -1


def tile(values: np.ndarray) -> list[np.ndarray]:
    """The four quarters of [2h, 2w, ...], row by row."""
    return [part for half in np.split(values, 2) for part in np.split(half, 2, axis=1)]


def prompt_order() -> np.ndarray:
    """The patch of the flattened (view, patch) at each place of the image span: the base view, then the joined tiles.

    NEWLINE follows every row of the joined tiles.
    """
    numbers = np.arange(VIEWS * VIEW_PATCHES).reshape(VIEWS, VIEW_GRID, VIEW_GRID)
    upper, lower = np.hstack(list(numbers[1:3])), np.hstack(list(numbers[3:5]))
    rows = np.pad(np.vstack([upper, lower]), ((0, 0), (0, 1)), constant_values=NEWLINE)  # [GRID, GRID + 1]
    return np.concatenate([numbers[0].reshape(-1), rows.reshape(-1)])


IMAGE_TOKENS = VIEW_PATCHES + GRID * (GRID + 1)


def view_owners(scene: Scene) -> np.ndarray:
    """The thing (from 1) that every patch of the flattened (view, patch) shows; 0 for background."""
    return np.concatenate([own.reshape(-1) for own in (patch_owners(scene, 2 * PATCH), *tile(patch_owners(scene)))])


class ViewBank(SceneBank):
    """Crowded scenes as the views that the processor cuts out of them."""

    name = "hd-scenes"
    views, view_patches = VIEWS, VIEW_PATCHES
    most_things = MOST_OBJECTS + MOST_DECOYS + 4 * len(ROLES)

    def sample(self, seed: int) -> Scene:
        return sample_hd_scene(seed)

    def draw(self, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
        image = scene_image(scene)
        base = image.resize((TILE_SIDE, TILE_SIDE), Image.Resampling.BICUBIC)
        views = [np.asarray(base), *tile(np.asarray(image))]
        return np.concatenate([*map(to_patches, views)]), view_owners(scene)
