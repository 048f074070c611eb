"""Where tokens lie in the image, and which representative stands for each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from PIL import Image

from covist.report.stages import ImageReport

PANEL_PIXELS, FRAME_PIXELS = 480, 240  # of the longer side of a view; a video has many
BLANK = 214  # grey of an unknown image

Corner = tuple[int, int]
"""(x, y) of a corner of the token grid."""


@dataclass(frozen=True)
class View:
    """One rectangular view of an image: its token range, its shape and the image that the encoder saw there."""

    start: int
    rows: int
    columns: int
    image: np.ndarray  # [rows * cell, columns * cell, 3] uint8

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    def holds(self, tokens: np.ndarray) -> np.ndarray:
        return (tokens >= self.start) & (tokens < self.stop)

    def cells(self, tokens: np.ndarray) -> np.ndarray:
        """(column, row) of tokens, [n, 2]."""
        rows, columns = np.divmod(tokens - self.start, self.columns)
        return np.stack([columns, rows], axis=1)

    def centres(self, tokens: np.ndarray) -> np.ndarray:
        """(x, y) of tokens in units of cells, [n, 2]."""
        return self.cells(tokens) + 0.5

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """Values of all tokens of the image [N] -> this view's [rows, columns]."""
        return values[self.start : self.stop].reshape(self.rows, self.columns)


def seen_views(report: ImageReport, image: Image.Image | Sequence[Image.Image] | None = None) -> list[View]:
    """The views of an image as the encoder saw them, scaled so that every token has a cell of the same size.

    report: what was kept of the image or video, from `Report.images` or `Report.visuals`
    image: the original, which is sharper than what the encoder saw, or the frames of a video. Without it, or if the
        views are parts of the image, the pixels of the call are shown; without pixels, the views are grey.

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model(**inputs)
    >>> [(view.rows, view.columns) for view in covist.viz.seen_views(handle.report.images[0])]
    [(24, 24)]
    """
    pixels = FRAME_PIXELS if report.is_video else PANEL_PIXELS
    cell = max(4, pixels // max(max(view) for view in report.grid.views))
    views, start = [], 0
    for (rows, columns), shown in zip(report.grid.views, _images(report, image), strict=True):
        resized = shown.convert("RGB").resize((columns * cell, rows * cell), Image.Resampling.BICUBIC)
        views.append(View(start, rows, columns, np.asarray(resized)))
        start += rows * columns
    return views


def arrange(count: int, width: float, height: float) -> int:
    """The number of columns in which panels of one shape roughly fill a square.

    >>> arrange(16, width=1, height=1), arrange(8, width=2, height=1)
    (4, 2)
    """
    return max(1, min(count, round(sqrt(count * height / width))))


def owners(image: ImageReport, stage: int) -> np.ndarray | None:
    """For every original token, the original token that represents it from `stage` on [N]; None if some have none."""
    assignment = image.assignment_at(stage)
    return None if assignment is None else image.stages[stage].kept[assignment].numpy()


def rebuilt(views: list[View], owner: np.ndarray | None, kept: np.ndarray) -> list[np.ndarray]:
    """The views rebuilt from the representatives: these show their patch, every other cell shows the mean colour of its
    representative's patch, and a cell without a representative is white."""
    patches = np.concatenate([_patches(view) for view in views])  # [N, cell, cell, 3]
    means = patches.mean(axis=(1, 2), keepdims=True).astype(np.uint8)  # [N, 1, 1, 3]
    painted = np.full_like(patches, 255)
    if owner is not None:
        painted[:] = means[owner]
    painted[kept] = patches[kept]
    return [_assemble(painted[view.start : view.stop], view) for view in views]


def outline(cells: Iterable[Corner]) -> list[list[Corner]]:
    """The closed borders, corner by corner, of an area of cells (column, row), without points on straight lines.

    Filled by the even-odd rule, they cover exactly these cells.
    """
    inside = set(cells)
    ahead: dict[Corner, list[Corner]] = defaultdict(list)  # clockwise, the area on the right-hand side
    for x, y in sorted(inside):
        for neighbour, start, end in (
            ((x, y - 1), (x, y), (x + 1, y)),
            ((x + 1, y), (x + 1, y), (x + 1, y + 1)),
            ((x, y + 1), (x + 1, y + 1), (x, y + 1)),
            ((x - 1, y), (x, y + 1), (x, y)),
        ):
            if neighbour not in inside:
                ahead[start].append(end)
    loops = []
    while ahead:
        loop = [next(iter(ahead))]
        while loop[-1] in ahead:
            here = loop[-1]
            loop.append(ahead[here].pop())
            if not ahead[here]:
                del ahead[here]
        loops.append(_corners(loop[:-1]))
    return loops


def _corners(loop: list[Corner]) -> list[Corner]:
    """A closed loop without the points on straight lines."""
    around = zip(loop[-1:] + loop[:-1], loop, loop[1:] + loop[:1], strict=True)
    return [here for before, here, after in around if before[0] != after[0] and before[1] != after[1]]


def _images(report: ImageReport, image: Image.Image | Sequence[Image.Image] | None) -> Sequence[Image.Image]:
    """What to show in each view."""
    count = len(report.grid.views)
    if isinstance(image, Sequence):
        together = ceil(len(image) / count)  # frames that the encoder merges; the first of them is shown
        return [image[min(number * together, len(image) - 1)] for number in range(count)]
    shows_parts = count > 1 and report.grid.relation == "apart"  # only the pixels tell which part a view shows
    if image is not None and not (shows_parts and report.pixels):
        crop = count == 1 and report.preprocessing.center_crop
        return [_central_square(image) if crop else image] * count
    if report.pixels:
        return [Image.fromarray(pixels.numpy()) for pixels in report.pixels]
    return [Image.new("RGB", (1, 1), (BLANK,) * 3)] * count


def _patches(view: View) -> np.ndarray:
    cell = view.image.shape[0] // view.rows
    blocks = view.image.reshape(view.rows, cell, view.columns, cell, 3)
    return blocks.swapaxes(1, 2).reshape(-1, cell, cell, 3)


def _assemble(patches: np.ndarray, view: View) -> np.ndarray:
    cell = patches.shape[1]
    blocks = patches.reshape(view.rows, view.columns, cell, cell, 3).swapaxes(1, 2)
    return blocks.reshape(view.rows * cell, view.columns * cell, 3)


def _central_square(image: Image.Image) -> Image.Image:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))
