"""What is kept of one image on the grid of every family: models of published sizes with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, isqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from transformers.models.auto.image_processing_auto import (
    IMAGE_PROCESSOR_MAPPING_NAMES,
    get_image_processor_class_from_name,
)

import covist
from covist.bench.random_models import RandomModel, build_random
from covist.bench.recipes import RECIPES
from covist.contract.family import Family
from covist.families.registry import families
from covist.report.pixels import Preprocessing
from covist.report.stages import ImageReport
from covist.viz.layout import View, seen_views
from covist.viz.panels import show_image
from covist.viz.sheet import Sheet
from covist.viz.theme import Theme
from plates.plate import BOLD, EDGE, GAP, TEXT, WIDTH, Representatives, explain

METHOD, BUDGET = "covist-fixed", "10%"
LAYERS = {"num_hidden_layers": 4}  # Qwen3-VL feeds the first three with features of its tower
CELL = 0.0505  # inches of a token in every family
HEADING, BELOW = 0.5, 0.16  # inches above and below a family
BETWEEN, APART = 1, 4  # cells between views, between families
LETTER = 0.072  # inches of a letter
SHOWN = 1.86  # inches of the image itself
CLIP = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
PROCESSORS: dict[str, dict[str, Any]] = {
    "internvl": {"size": {"height": 448, "width": 448}, "crop_to_patches": True},
    "llava-1.5": CLIP,
    "llava-next": {**CLIP, "image_grid_pinpoints": [[672, 672]]},
    "llava-next-video": {**CLIP, "image_grid_pinpoints": [[672, 672]]},
    "llava-onevision": {"image_grid_pinpoints": [[768, 768]]},
    "mistral3": {"size": {"longest_edge": 1540}, "patch_size": 28},
    "qwen2-vl": {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}},
    "qwen2.5-vl": {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}},
    "qwen3-vl": {"patch_size": 16, "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096}},
    "smolvlm": {"size": {"longest_edge": 4 * 384}, "max_image_size": {"longest_edge": 384}},
}
"""Where published image processors differ from the defaults of their class, for a square image."""
SIDES = {"mistral3": 1540, "qwen2-vl": 1008, "qwen2.5-vl": 1008}
"""Pixels of the square image whose tokens a preset counts, where its family does not resize."""
SIDE = 1024


@dataclass(frozen=True)
class Kept:
    """What is kept of the image in a model of one of the published sizes of a family."""

    family: str
    preset: str
    report: ImageReport

    @property
    def views(self) -> tuple[tuple[int, int], ...]:
        return self.report.grid.views

    @property
    def rows(self) -> int:
        """Cells that it is high."""
        return max(y + rows for (rows, _), (_, y) in zip(self.views, beside(self.views), strict=True))

    @property
    def columns(self) -> int:
        """Cells that it is wide, its text included."""
        ends = [x + columns for (_, columns), (x, _) in zip(self.views, beside(self.views), strict=True)]
        return max(*ends, ceil(LETTER * len(self.facts) / CELL))

    @property
    def facts(self) -> str:
        """Its views, what stands between their tokens, and how many tokens are kept."""
        shapes = " + ".join(_times(self.views.count(view), view) for view in dict.fromkeys(self.views))
        markers = f" + {self.report.markers} marks" if self.report.markers else ""
        return f"{shapes}{markers}: {len(self.report.kept):,} of {self.report.tokens:,}"


def _times(count: int, view: tuple[int, int]) -> str:
    rows, columns = view
    return f"{f'{count} × ' if count > 1 else ''}{rows} × {columns}"


def kept_by_family(image: Image.Image, names: tuple[str, ...] = ()) -> list[Kept]:
    """Every family of this package, or those named, from few visual tokens to many."""
    ours = [family for family in families() if family.__module__.startswith("covist.") and family.presets]
    kept = [_kept(family, image) for family in ours if family.name in (names or (family.name,))]
    return sorted(kept, key=lambda one: one.report.tokens)


@torch.inference_mode()
def _kept(family: type[Family], image: Image.Image) -> Kept:
    """By the family's first preset, with few decoder layers and as few encoder layers as the signals need."""
    preset = family.presets[0]
    random = build_random(preset.name, decoder=LAYERS, vision=RECIPES[family.name].shallow)
    processor = _image_processor(family, random.model.config)
    side = SIDES.get(family.name, SIDE)
    inputs = _with_image(random, processor(images=image.resize((side, side)), return_tensors="pt"))
    with covist.compress(random.model, random.tokenizer, method=METHOD, budget=BUDGET, clip=random.clip) as handle:
        random.model(**inputs)
    (report,) = handle.report.images
    seen = Preprocessing.of(SimpleNamespace(image_processor=processor))
    return Kept(family.name, preset.name, replace(report, preprocessing=seen))


def _image_processor(family: type[Family], config: Any) -> Any:
    """The one of the family's model type, or of its tower where the type has several."""
    kind = next(iter(family.tower_types), config.model_type)
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind) or IMAGE_PROCESSOR_MAPPING_NAMES[config.model_type]
    return get_image_processor_class_from_name(names["pil"])(**PROCESSORS.get(family.name, {}))


def _with_image(random: RandomModel, prepared: Any) -> dict[str, Tensor]:
    """A request whose random pixels are replaced by the image; the prompt has room for as many tiles as that has."""
    pixels = prepared["pixel_values"]
    tiles = pixels.shape[-4] if pixels.ndim >= 4 else 1
    each = random.geometry.tokens // random.geometry.tiles
    tiled = replace(random, geometry=replace(random.geometry, tiles=tiles, tokens=tiles * each))
    inputs = tiled.request(seed=0, text=8)
    for name in set(inputs) & set(prepared):
        if inputs[name].shape != prepared[name].shape:
            raise ValueError(
                f"{name} of {random.geometry.name} must be {tuple(inputs[name].shape)}, and its processor makes "
                f"{tuple(prepared[name].shape)}; give its settings in PROCESSORS or SIDES"
            )
        inputs[name] = prepared[name].to(inputs[name].dtype)
    return inputs


def beside(views: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(x, y) of each view in cells: views stand in a row; tiles that are views of their own make a square, the whole
    image is after them.

    >>> beside([(24, 24), (48, 48)]), beside([(16, 16)] * 5)
    ([(0, 0), (25, 0)], [(0, 0), (17, 0), (0, 17), (17, 17), (34, 0)])
    """
    rows, columns = views[0]
    across = isqrt(len(views) - 1) if len(views) > 2 else 1
    tiles = [
        (number % across * (columns + BETWEEN), number // across * (rows + BETWEEN))
        for number in range(max(1, len(views) - 1))
    ]
    return tiles if len(views) == 1 else [*tiles, (across * (columns + BETWEEN), 0)]


def rows_of(kept: Sequence[Kept]) -> list[list[Kept]]:
    """As many families beside each other as fit, in their order."""
    rows: list[list[Kept]] = []
    for one in kept:
        if not rows or sum(other.columns + APART for other in rows[-1]) + one.columns > (WIDTH - 2 * EDGE) / CELL:
            rows.append([])
        rows[-1].append(one)
    return rows


def draw(image: Image.Image, kept: Sequence[Kept], theme: Theme) -> Figure:
    """All families on one scale: a token has the same size everywhere."""
    rows = rows_of(kept)
    heights = [HEADING + CELL * max(one.rows for one in row) + BELOW for row in rows]
    first = EDGE + SHOWN + BELOW
    sheet = Sheet(first + sum(heights), theme=theme, width=WIDTH)
    seen = View(0, 1, 1, np.asarray(image))
    show_image(sheet.axes(EDGE, EDGE, SHOWN, SHOWN), seen, theme=theme)
    lines = (
        f"{METHOD} keeps {BUDGET} of the tokens; a token has the same size everywhere",
        "random weights in published sizes: grids and tiles are real, the choice means little",
    )
    explain(sheet, EDGE, EDGE + SHOWN + 2 * GAP, "One image in every family", lines)
    for number, row in enumerate(rows):
        left = EDGE
        for one in row:
            _show(sheet, left, first + sum(heights[:number]), one, image)
            left += CELL * (one.columns + APART)
    return sheet.figure


def _show(sheet: Sheet, left: float, top: float, one: Kept, image: Image.Image) -> None:
    """One family: its name, its numbers and its views."""
    sheet.write(one.family, top + 0.14, left, fontsize=BOLD, weight="bold")
    sheet.write(one.facts, top + 0.34, left, fontsize=TEXT, color=sheet.theme.soft)
    kept = Representatives(one.report, sheet)
    for view, (x, y) in zip(seen_views(one.report, image), beside(one.views), strict=True):
        kept.show(view, left + CELL * x, top + HEADING + CELL * y, CELL * view.columns)
