"""InternVL 3 and 3.5: the tiles of an image are one run of the prompt, with a view of the whole image last."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from covist.contract.signals import ImageSignals, PlacedSignals
from covist.families.generic import Generic, adjacent
from covist.families.registry import register_family
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


@register_family
class InternVL(Generic):
    """The model does not learn how tiles are arranged (12 may be 3 x 4 or 2 x 6), so each tile is a separate view.

    The tower has a class token, but the decoder never sees it. The evidence is the attention that the patches of a tile
    pay to each other.
    """

    name = "internvl"
    model_classes = ("InternVLForConditionalGeneration",)
    processor = "InternVLProcessor"
    token_count = "256 per tile, up to 13 tiles"
    encoder_signal = "incoming attention of the last block"
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

    def images_in(self, pieces: list[PlacedSignals], ids: Tensor | None) -> list[PlacedSignals]:
        """Adjacent tiles are one image; between two images there are an end mark and a begin mark."""
        return [_joined(tiles) for tiles in adjacent(pieces)]


def _joined(tiles: list[PlacedSignals]) -> PlacedSignals:
    first, *others = tiles
    if not others:
        return first
    signals = [tile.signals for tile in tiles]
    views = tuple(view for tile in signals for view in tile.grid.views)
    return first.joined(others, lambda: ImageSignals.join(signals, Grid(views, "apart")))
