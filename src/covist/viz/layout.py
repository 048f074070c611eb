"""Where tokens lie in the picture, and which representative stands for which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from covist.contract.stages import ImageReport
from covist.grid import Grid

PANEL_PIXELS = 480


@dataclass(frozen=True)
class View:
    """One rectangular view of an image: its token range, its shape and the picture that the encoder saw there."""

    start: int
    rows: int
    columns: int
    picture: np.ndarray  # [rows * cell, columns * cell, 3] uint8

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    def holds(self, tokens: np.ndarray) -> np.ndarray:
        return (tokens >= self.start) & (tokens < self.stop)

    def centres(self, tokens: np.ndarray) -> np.ndarray:
        """(x, y) of tokens in units of cells, [n, 2]."""
        y, x = np.divmod(tokens - self.start, self.columns)
        return np.stack([x + 0.5, y + 0.5], axis=1)

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """Values of all tokens of the image [N] -> this view's [rows, columns]."""
        return values[self.start : self.stop].reshape(self.rows, self.columns)


def seen_views(picture: Image.Image, grid: Grid, processor: Any | None = None) -> list[View]:
    """The picture as each view's encoder input showed it, cut so that every token has a cell of the same size."""
    image_processor = getattr(processor, "image_processor", None)
    if len(grid.views) == 1 and getattr(image_processor, "do_center_crop", False):
        picture = _central_square(picture)
    cell = max(4, PANEL_PIXELS // max(max(view) for view in grid.views))
    views, start = [], 0
    for rows, columns in grid.views:
        resized = picture.convert("RGB").resize((columns * cell, rows * cell), Image.Resampling.BICUBIC)
        views.append(View(start, rows, columns, np.asarray(resized)))
        start += rows * columns
    return views


def owners(image: ImageReport, stage: int) -> np.ndarray | None:
    """For every original token the original token that represents it from `stage` on [N]; None if nobody does."""
    lineage = np.arange(image.tokens)
    for number in range(stage + 1):
        assignment = image.stages[number].assignment
        if assignment is None:
            if len(image.stages[number].indices) == _before(image, number):
                continue  # nothing was removed
            return None
        lineage = assignment.numpy()[lineage]
    return image.stages[stage].indices.numpy()[lineage]


def tokens_before(image: ImageReport, stage: int) -> np.ndarray:
    """The original tokens that a stage had to choose from."""
    return np.arange(image.tokens) if stage == 0 else image.stages[stage - 1].indices.numpy()


def rebuilt(views: list[View], owner: np.ndarray | None, kept: np.ndarray) -> list[np.ndarray]:
    """The views from the representatives alone: they show their patch, every other cell the mean colour of its
    representative's patch, and a cell without one is white."""
    patches = np.concatenate([_patches(view) for view in views])  # [N, cell, cell, 3]
    means = patches.mean(axis=(1, 2), keepdims=True).astype(np.uint8)  # [N, 1, 1, 3]
    painted = np.full_like(patches, 255)
    if owner is not None:
        painted[:] = means[owner]
    painted[kept] = patches[kept]
    return [_assemble(painted[view.start : view.stop], view) for view in views]


def _before(image: ImageReport, stage: int) -> int:
    return image.tokens if stage == 0 else len(image.stages[stage - 1].indices)


def _patches(view: View) -> np.ndarray:
    cell = view.picture.shape[0] // view.rows
    blocks = view.picture.reshape(view.rows, cell, view.columns, cell, 3)
    return blocks.swapaxes(1, 2).reshape(-1, cell, cell, 3)


def _assemble(patches: np.ndarray, view: View) -> np.ndarray:
    cell = patches.shape[1]
    blocks = patches.reshape(view.rows, view.columns, cell, cell, 3).swapaxes(1, 2)
    return blocks.reshape(view.rows * cell, view.columns * cell, 3)


def _central_square(picture: Image.Image) -> Image.Image:
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))
