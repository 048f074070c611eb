"""InternVL 3 and 3.5: the tiles of an image in one run of the prompt, a view of the whole image last."""

from __future__ import annotations

from math import isqrt
from typing import Any

from torch import Tensor, nn

from covist.contract.signals import ImageSignals, PlacedSignals
from covist.errors import CovistError
from covist.families.registry import register_family
from covist.families.tiles import TileFamily
from covist.grid import Grid

FEATURES = {"vision_feature_layer": -1, "vision_feature_select_strategy": "default"}
"""Which features the projector must read: those of the last block, without the class token."""


@register_family
class InternVL(TileFamily):
    """How the tiles of an image lie is lost on the way to the model (12 may be 3 x 4 or 2 x 6), so each is a view.

    The tower has a class token, but the decoder never sees what it gathers. Evidence is what the patches of a tile look
    at, among themselves.
    """

    name = "internvl"
    model_classes = ("InternVLForConditionalGeneration",)
    queries_and_keys = ("q_norm", "k_norm")  # identities in towers without norms
    class_tokens = 1

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.check({name: getattr(self.model.config, name) for name in FEATURES})

    def check(self, arguments: dict[str, Any]) -> None:
        for name, needed in FEATURES.items():
            if arguments.get(name) not in (None, needed):
                raise CovistError(f"{name} must be {needed!r}, not {arguments[name]!r}: evidence is the last block's")

    @property
    def tower(self) -> Any:
        return self.base.vision_tower

    @property
    def evidence_attention(self) -> Any:
        return self.tower.encoder.layer[-1].attention

    @property
    def projector(self) -> Any:
        return self.base.multi_modal_projector

    def fold(self, patches: Tensor) -> Tensor:
        side = isqrt(patches.shape[1])
        square = patches.unflatten(1, (side, side))
        return self.base.pixel_shuffle(square, scale_factor=self.model.config.downsample_ratio).flatten(1, 2)

    def images_in(self, pieces: list[PlacedSignals], ids: Tensor | None) -> list[PlacedSignals]:
        """Tiles that follow each other are one image: an end and a begin mark stand between two images."""
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
