"""Idefics3 and SmolVLM: tiles, each after a mark with its row and column, and a view of the whole image last."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.family import Family
from covist.contract.signals import ImageSignals, PlacedSignals
from covist.families.folding import ModuleCall
from covist.families.generic import Generic
from covist.families.registry import register_family
from covist.grid import Grid
from covist.plan import Geometry
from covist.report.pixels import lay_out, patches_of_tiles

Place = tuple[int, int]
"""Row and column of a tile, counted from 1."""
FIRST, GLOBAL = (1, 1), (0, 0)

MARK = re.compile(r"\s*(<row_(?P<row>\d+)_col_(?P<column>\d+)>|<global-img>)")
LONGEST_MARK = 16
"""Most tokens of a mark: one in most vocabularies, but Idefics3-8B spells it out."""

UNREAD = (
    "the prompt says which tiles form one image: without the processor and token ids, every tile is compressed as a "
    "separate image with its own budget; pass the processor to compress(), and input_ids to the model"
)

LARGEST: dict[str, Any] = {"tiles": 17, "markers": 37}
"""4 x 4 tiles and the global view of a square image, and the tokens between them if a mark is one token."""


@register_family
class Idefics3(Generic):
    """The prompt says where the tiles lie, so they become one high-resolution view beside the global view."""

    name = "idefics3"
    model_classes = ("Idefics3ForConditionalGeneration",)
    token_count = "169 per tile, up to 17 tiles of a square image"
    presets: ClassVar[tuple[Geometry, ...]] = (
        Geometry("idefics3-8b", 32, 4096, 14336, 32, 8, 17 * 169, budgets=(640, 320, 160), **LARGEST),
    )
    encoder_signal = "incoming attention of the last block"
    video = "none"
    assistant_markers = (*Family.assistant_markers, "Assistant:")
    role_markers = (*Family.role_markers, "User:")
    _warned = False

    def spans(self, output: Any, calls: list[ModuleCall]) -> list[Tensor]:
        """Of each tile: the model returns all tiles of a prompt in one piece."""
        tiles = next(call.given for call in calls if call.module is self.base.vision_model)
        return list(torch.cat(super().spans(output, calls)).chunk(len(tiles)))

    def images_in(self, pieces: list[PlacedSignals], ids: Tensor | None) -> list[PlacedSignals]:
        """Tiles from row 1, column 1 on are one image, together with the global view after them."""
        if self.tokenizer is None or ids is None:
            self._warn_of(len(pieces))
            return pieces
        images: list[list[_Tile]] = []
        for piece in pieces:
            tile = _marked(piece, ids, self.tokenizer)
            if images and images[-1][-1].place not in (None, GLOBAL) and tile.place not in (None, FIRST):
                images[-1].append(tile)
            else:
                images.append([tile])
        return [image for tiles in images for image in _joined(tiles)]

    def _warn_of(self, tiles: int) -> None:
        if tiles > 1 and not self._warned:
            self._warned = True
            warnings.warn(UNREAD, stacklevel=2)


@register_family
class SmolVLM(Idefics3):
    name = "smolvlm"
    model_classes = ("SmolVLMForConditionalGeneration",)
    processor = "SmolVLMProcessor"
    token_count = "64 (2.2B: 81) per tile, up to 17 tiles of a square image"
    video = "compressed, each frame as an image"
    presets = (
        Geometry("smolvlm-2.2b", 24, 2048, 8192, 32, 32, 17 * 81, budgets=(256, 128, 64), **LARGEST),
        Geometry("smolvlm-500m", 32, 960, 2560, 15, 5, 17 * 64, budgets=(256, 128, 64), **LARGEST),
        Geometry("smolvlm-256m", 30, 576, 1536, 9, 3, 17 * 64, budgets=(256, 128, 64), **LARGEST),
    )


@dataclass(frozen=True)
class _Tile:
    """A tile, beginning with its mark in the prompt, and the place that the mark gives; None without a mark."""

    piece: PlacedSignals
    place: Place | None


def _marked(piece: PlacedSignals, ids: Tensor, tokenizer: Any) -> _Tile:
    for start in range(piece.start - 1, max(-1, piece.start - LONGEST_MARK - 1), -1):
        before = ids[start : piece.start].tolist()
        mark = MARK.fullmatch(tokenizer.decode(before, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if mark is not None:
            place = (int(mark["row"]), int(mark["column"])) if mark["row"] else GLOBAL
            return _Tile(replace(piece, start=start), place)
    return _Tile(piece, None)


def _joined(tiles: list[_Tile]) -> list[PlacedSignals]:
    """One image if the tiles fill a rectangle row by row; otherwise each tile by itself."""
    pieces = [tile.piece for tile in tiles]
    cells = [tile.place for tile in tiles if tile.place is not None and tile.place != GLOBAL]
    rows, columns = cells[-1] if cells else GLOBAL
    if not cells or cells != list(product(range(1, rows + 1), range(1, columns + 1))):
        return pieces
    return [pieces[0].joined(pieces[1:], partial(_as_views, [piece.signals for piece in pieces], rows, columns))]


def _as_views(tiles: list[ImageSignals], rows: int, columns: int) -> ImageSignals:
    """The first rows x columns tiles side by side, and the global view if one comes after them."""
    side, _ = tiles[0].grid.views[0]
    numbers = torch.arange(len(tiles) * side * side, device=tiles[0].span.device)  # tile by tile
    inside, others = numbers.split([rows * columns * side * side, (len(tiles) - rows * columns) * side * side])
    order = torch.cat([inside.view(rows, columns, side, side).transpose(1, 2).flatten(), others])
    grid = Grid(((rows * side, columns * side), *((side, side) for _ in tiles[rows * columns :])))

    def pixels() -> list[Tensor]:
        shown = torch.stack([view for tile in tiles if tile.read_pixels is not None for view in tile.read_pixels()])
        return lay_out(patches_of_tiles(shown, side)[order.cpu()], grid)

    return ImageSignals.join(tiles, grid, order, pixels)
