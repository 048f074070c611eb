"""Idefics3 and SmolVLM: tiles, each after a mark with its row and column, and a view of the whole image last."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.family import Family
from covist.contract.profile import FIRST_SPECIAL, narrowed
from covist.contract.signals import ImageSignals, PlacedSignals
from covist.families.registry import register_family
from covist.families.tiles import TileFamily
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
TILES = {"idefics3-8b": (364, 14, 2), "smolvlm-2.2b": (384, 14, 3)}
"""Preset -> pixels along a tile, pixels along a patch, and patches along a token."""
SMALL_TILES = (512, 16, 4)
WRITTEN = (
    "<image>",
    "<fake_token_around_image>",
    "\n",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row, column in product(range(1, 5), repeat=2)),
)
"""Texts in the prompts of models with random weights, with ids from FIRST_SPECIAL on."""


@register_family
class Idefics3(TileFamily):
    """The prompt says where the tiles lie, so they become one high-resolution view beside the global view."""

    name = "idefics3"
    model_classes = ("Idefics3ForConditionalGeneration",)
    token_count = "169 per tile, up to 17 tiles of a square image"
    presets: ClassVar[tuple[Geometry, ...]] = (
        Geometry("idefics3-8b", 32, 4096, 14336, 32, 8, 17 * 169, budgets=(640, 320, 160), **LARGEST),
    )
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
    def encoder_layers(self) -> Sequence[Any]:
        return self.tower.encoder.layers

    def attention_of(self, layer: Any) -> Any:
        return layer.self_attn

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

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        """SigLIP: base/16 under the small models, so400m/14 under the others."""
        side, patch, _ = TILES.get(geometry.name, SMALL_TILES)
        layers, count, head, width = (12, 12, 64, 3072) if patch == 16 else (27, 16, 72, 4304)
        heads = narrowed(count, scale)
        return {
            "hidden_size": head * heads,
            "intermediate_size": round(width * scale),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "image_size": side,
            "patch_size": patch,
        }

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        import transformers

        return getattr(transformers, cls.model_classes[0]).config_class(
            vision_config=tower,
            text_config={"model_type": "llama", **text},
            scale_factor=TILES.get(geometry.name, SMALL_TILES)[2],
            image_token_id=FIRST_SPECIAL,
        )

    @classmethod
    def random_input(
        cls, geometry: Geometry, config: Any, generator: torch.Generator
    ) -> tuple[list[int], dict[str, Tensor]]:
        image, fake, newline, whole, *marks = range(FIRST_SPECIAL, FIRST_SPECIAL + len(WRITTEN))
        run, columns = [image] * (geometry.tokens // geometry.tiles), isqrt(geometry.tiles)
        ids: list[int] = []
        for number, mark in enumerate(marks, start=1):
            ids += [fake, mark, *run, *([] if number % columns else [newline])]
        side = config.vision_config.image_size
        pixels = torch.randn(1, geometry.tiles, 3, side, side, generator=generator)
        return [*ids, fake, whole, *run, fake], {"pixel_values": pixels}

    @classmethod
    def random_tokenizer(cls) -> Any:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        words = (*(f"word{number}" for number in range(FIRST_SPECIAL)), *WRITTEN)
        vocabulary = models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="word0")
        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(vocabulary))


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
