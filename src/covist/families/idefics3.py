"""Idefics3 and SmolVLM: tiles with their row and column written between them, a view of the whole image last."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from covist.contract.family import Family
from covist.contract.pixels import lay_out, patches_of_tiles
from covist.contract.signals import ImageSignals, PlacedSignals
from covist.families.registry import register_family
from covist.families.tiles import TileFamily
from covist.grid import Grid

Place = tuple[int, int]
"""Row and column of a tile, counted from 1."""
FIRST, GLOBAL = (1, 1), (0, 0)

MARK = re.compile(r"\s*(<row_(?P<row>\d+)_col_(?P<column>\d+)>|<global-img>)")
LONGEST_MARK = 16
"""Tokens that a mark may have: one in most vocabularies, but Idefics3-8B spells it out."""

UNREAD = (
    "which tiles are one image is written in the prompt: without the processor and token ids every tile is compressed "
    "as an image of its own, with a budget of its own; give compress() the processor"
)


@register_family
class Idefics3(TileFamily):
    """The prompt says how the tiles lie, so that they become one view of high resolution beside the global one."""

    name = "idefics3"
    model_classes = ("Idefics3ForConditionalGeneration",)
    assistant_markers = (*Family.assistant_markers, "Assistant:")
    role_markers = (*Family.role_markers, "User:")
    _warned = False

    @property
    def decoder(self) -> Any:
        return self.base.text_model

    @property
    def tower(self) -> Any:
        return self.base.vision_model

    @property
    def evidence_attention(self) -> Any:
        return self.tower.encoder.layers[-1].self_attn

    @property
    def projector(self) -> Any:
        return self.base.connector.modality_projection

    def fold(self, patches: Tensor) -> Tensor:
        connector = self.base.connector
        return connector.pixel_shuffle(patches, connector.scale_factor)

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


@dataclass(frozen=True)
class _Tile:
    """A tile, beginning with its mark in the prompt, and where that says that it lies; None if it has no mark."""

    piece: PlacedSignals
    place: Place | None


def _marked(piece: PlacedSignals, ids: Tensor, tokenizer: Any) -> _Tile:
    for start in range(piece.start - 1, max(-1, piece.start - LONGEST_MARK - 1), -1):
        before = ids[start : piece.start].tolist()
        mark = MARK.fullmatch(tokenizer.decode(before, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if mark is not None:
            return _Tile(replace(piece, start=start), (int(mark["row"]), int(mark["column"])) if mark["row"] else GLOBAL)
    return _Tile(piece, None)


def _joined(tiles: list[_Tile]) -> list[PlacedSignals]:
    """One image, if its tiles fill a rectangle row by row; otherwise they are taken as they are."""
    pieces = [tile.piece for tile in tiles]
    cells = [tile.place for tile in tiles if tile.place not in (None, GLOBAL)]
    rows, columns = cells[-1] if cells and cells[-1] is not None else GLOBAL
    if not cells or cells != list(product(range(1, rows + 1), range(1, columns + 1))):
        return pieces
    return [pieces[0].joined(pieces[1:], partial(_as_views, [piece.signals for piece in pieces], rows, columns))]


def _as_views(tiles: list[ImageSignals], rows: int, columns: int) -> ImageSignals:
    """The first rows x columns tiles side by side, and the global view if one comes after them."""
    side, _ = tiles[0].grid.views[0]
    device = tiles[0].span.device
    order = torch.arange(len(tiles) * side * side, device=device)
    cells = order[: rows * columns * side * side].view(rows, columns, side, side)
    order = torch.cat([cells.transpose(1, 2).flatten(), order[cells.numel() :]])
    grid = Grid(((rows * side, columns * side), *((side, side) for _ in tiles[rows * columns :])))

    def pixels() -> list[Tensor]:
        seen = torch.stack([view for tile in tiles if tile.read_pixels is not None for view in tile.read_pixels()])
        return lay_out(patches_of_tiles(seen, side)[order.cpu()], grid)

    return ImageSignals.join(tiles, grid, order, pixels)
