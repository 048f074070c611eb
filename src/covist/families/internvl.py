"""InternVL 3 and 3.5: the tiles of an image are one run of the prompt, with a view of the whole image last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

from torch import Tensor, nn

from covist.contract.signals import ImageSignals, PlacedSignals
from covist.errors import CovistError
from covist.families.registry import register_family
from covist.families.tiles import TileFamily
from covist.grid import Grid
from covist.plan import Geometry

SEVEN_TILES = Geometry(
    "internvl3-8b", 28, 3584, 18944, 28, 4, tokens=7 * 256, budgets=(640, 320, 160), tiles=7
)  # 2 x 3 tiles and the view of the whole image
OVER_QWEN3 = replace(
    SEVEN_TILES,
    name="internvl3.5-8b",
    layers=36,
    hidden=4096,
    intermediate=12288,
    heads=32,
    kv_heads=8,
    head_dim=128,
)  # the text models of InternVL3.5 are Qwen3 of 0.6B, 1.7B, 4B, 8B and 14B
FEATURES = {"vision_feature_layer": -1, "vision_feature_select_strategy": "default"}
"""The features that the projector must read: those of the last block, without the class token."""


@register_family
class InternVL(TileFamily):
    """The model does not learn how tiles are arranged (12 may be 3 x 4 or 2 x 6), so each tile is a separate view.

    The tower has a class token, but the decoder never sees it. The evidence is the attention that the patches of a tile
    pay to each other.
    """

    name = "internvl"
    model_classes = ("InternVLForConditionalGeneration",)
    processor = "InternVLProcessor"
    token_count = "256 per tile, up to 13 tiles"
    video = "compressed, each frame as an image"
    presets = (
        SEVEN_TILES,
        replace(SEVEN_TILES, name="internvl3-1b", layers=24, hidden=896, intermediate=4864, heads=14, kv_heads=2),
        replace(SEVEN_TILES, name="internvl3-2b", hidden=1536, intermediate=8960, heads=12, kv_heads=2),
        OVER_QWEN3,
        replace(OVER_QWEN3, name="internvl3.5-1b", layers=28, hidden=1024, intermediate=3072, heads=16),
        replace(OVER_QWEN3, name="internvl3.5-2b", layers=28, hidden=2048, intermediate=6144, heads=16),
        replace(OVER_QWEN3, name="internvl3.5-4b", hidden=2560, intermediate=9728),
        replace(OVER_QWEN3, name="internvl3.5-14b", layers=40, hidden=5120, intermediate=17408, heads=40),
    )
    queries_and_keys = ("q_norm", "k_norm")  # identities in towers without norms
    class_tokens = 1

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.check({name: getattr(self.model.config, name) for name in FEATURES})

    def check(self, arguments: dict[str, Any]) -> None:
        for name, needed in FEATURES.items():
            if arguments.get(name) not in (None, needed):
                raise CovistError(
                    f"{name} must be {needed!r}, not {arguments[name]!r}: the evidence comes from the last block"
                )

    @property
    def tower(self) -> Any:
        return self.base.vision_tower

    @property
    def encoder_layers(self) -> Sequence[Any]:
        return self.tower.encoder.layer

    def attention_of(self, layer: Any) -> Any:
        return layer.attention

    @property
    def projector(self) -> Any:
        return self.base.multi_modal_projector

    def fold(self, patches: Tensor) -> Tensor:
        side = isqrt(patches.shape[1])
        square = patches.unflatten(1, (side, side))
        return self.base.pixel_shuffle(square, scale_factor=self.model.config.downsample_ratio).flatten(1, 2)

    def images_in(self, pieces: list[PlacedSignals], ids: Tensor | None) -> list[PlacedSignals]:
        """Adjacent tiles are one image; between two images there are an end mark and a begin mark."""
        images: list[list[PlacedSignals]] = []
        for piece in pieces:
            if images and images[-1][-1].end == piece.start:
                images[-1].append(piece)
            else:
                images.append([piece])
        return [_joined(tiles) for tiles in images]


def _joined(tiles: list[PlacedSignals]) -> PlacedSignals:
    first, *others = tiles
    if not others:
        return first
    signals = [tile.signals for tile in tiles]
    views = tuple(view for tile in signals for view in tile.grid.views)
    return first.joined(others, lambda: ImageSignals.join(signals, Grid(views, "apart")))
