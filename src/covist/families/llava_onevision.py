"""LLaVA-OneVision: a base view and an unpadded grid of tiles, resized if it is too large; a newline ends each row.

If the grid has more than `anyres_max_N` tiles' worth of tokens, the model shrinks it bilinearly after the projector, so
that a token is a mixture of up to four patches. Video frames are always shrunk in this way, to half their side, and one
newline ends the video. Signals of patches are shrunk in the same way here: the attention and keys of a token are those
of its mixture. Projecting its encoder features, as merging methods do, gives its embedding only approximately, because
the projector is not linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covist.contract.signals import ImageSignals
from covist.families.incoming import choose_query_patches_in_rows
from covist.families.patch_attention import PatchAttention, ProjectionTap
from covist.families.projected import ProjectedTowerFamily, TowerOutput
from covist.families.reads import Placing, RecordedReads, of_entries
from covist.families.registry import register_family
from covist.families.video import film
from covist.grid import Grid
from covist.plan import Geometry
from covist.report.pixels import lay_out, patches_of_tiles

TWO_BY_TWO: dict[str, Any] = {"tokens": 3645, "markers": 54, "budgets": (640, 320, 160), "tiles": 5}
"""An image of 768 x 768 pixels: 27 x 27 tokens in its base view, 54 x 54 in its grid."""
PatchRecords = list[PatchAttention]
"""Queries and keys of an encoder layer, for each entry of the tower's batch."""
NEVER_RESIZED = "anyres_max_1000000"


@dataclass(frozen=True)
class Packing:
    """How the model lays out the tiles of one image."""

    base: Any  # the module that packs
    size: Any  # height and width of the image
    aspect_ratio: str  # the model's setting, which says from how many tiles on the grid is resized
    side: int  # patches along a side of a tile

    def __call__(self, per_patch: Tensor, newline: Tensor | None = None) -> Tensor:
        """Values of the patches [tiles, patches, c] -> of the tokens [n, c], with newlines [c] if given."""
        tokens, _ = self.base.pack_image_features([per_patch], [self.size], newline, self.aspect_ratio)
        return tokens[0]

    def layout(self, tiles: int) -> tuple[Grid, Tensor]:
        """The grid of the content tokens, and which tokens are content [n] bool, on the host."""
        ones = torch.ones(tiles, self.side**2, 1)
        content = self(ones, newline=ones.new_zeros(1))[:, 0] > 0.5
        views = [(self.side, self.side)]
        high_resolution = int(content.sum()) - self.side**2
        if high_resolution:  # unpadding may leave nothing of an extremely long and narrow image
            rows = int((~content).sum())
            views.append((rows, high_resolution // rows))
        return Grid(tuple(views)), content


@register_family
class LlavaOnevision(ProjectedTowerFamily[PatchRecords]):
    """The evidence is the incoming attention of the layer that feeds the projector: the tower has no class token."""

    name = "llava-onevision"
    model_classes = ("LlavaOnevisionForConditionalGeneration",)
    tower_types = ("siglip_vision_model",)
    select_strategy = "full"
    processor = "LlavaOnevisionProcessor"
    needs_clip_text = False
    encoder_signal = "incoming attention of the layer that feeds the projector"
    video = "compressed"
    video_stand_in = "LlavaOnevisionVideos"
    token_count = "up to 7290, plus newlines; 729 each if a prompt has several images"
    presets = (
        Geometry("llava-onevision-7b", 28, 3584, 18944, 28, 4, **TWO_BY_TWO),
        Geometry("llava-onevision-0.5b", 24, 896, 4864, 14, 2, **TWO_BY_TWO),
    )

    @property
    def encoder_layers(self) -> Sequence[Any]:
        return self.base.vision_tower.encoder.layers

    def tap(self, layer: Any) -> ProjectionTap:
        return ProjectionTap(layer.self_attn)

    def images(self, output: TowerOutput[PatchRecords]) -> list[ImageSignals]:
        arguments, sizes = output.arguments, output.arguments["image_sizes"]
        aspect_ratio = arguments.get("vision_aspect_ratio") or self.model.config.vision_aspect_ratio
        vision, pixels = self.model.config.vision_config, arguments["pixel_values"]
        (blocks,), signals, first = output.captured.values(), [], 0
        counts = self._tiles(sizes, arguments.get("batch_num_images"))
        for number, (span, size, tiles) in enumerate(zip(output.spans, sizes, counts, strict=True)):
            packing = Packing(self.base, size, aspect_ratio, vision.image_size // vision.patch_size)
            of_image = slice(first, first + tiles)
            requested = of_entries(output.requested, of_image)
            image = self._image(span.detach(), packing, blocks[of_image], output.features[of_image], requested)
            shown = pixels[number, :tiles] if pixels.ndim == 5 else pixels[of_image]  # [tiles, 3, h, w]
            image.read_pixels = lambda shown=shown, packing=packing: _read_tiles(shown, packing)
            signals.append(image)
            first = of_image.stop
        return signals

    @property
    def visual_tokens(self) -> tuple[int, ...]:
        return (self.model.config.image_token_id, self.model.config.video_token_id)

    def videos(self, output: TowerOutput[PatchRecords]) -> list[ImageSignals]:
        pixels = output.arguments["pixel_values_videos"]  # [videos, frames, 3, h, w]
        (blocks,), frames = output.captured.values(), pixels.shape[1]
        vision = self.model.config.vision_config
        side = math.ceil(vision.image_size // vision.patch_size / 2)
        signals: list[ImageSignals] = []
        for number, span in enumerate(output.spans):
            of_video = slice(number * frames, (number + 1) * frames)
            requested = of_entries(output.requested, of_video)
            part_of = partial(self._frames, pixels[number], blocks[of_video], output.features[of_video], requested)
            signals += film(span, (side, side), frames, part_of)
        return signals

    def _frames(
        self, pixels: Tensor, blocks: list[PatchAttention], features: Tensor, requested: RecordedReads, part: range
    ) -> dict[str, Any]:
        """The `ImageSignals` fields for some frames of a video, given its pixels, blocks, features and reads."""
        of_part, shrunk, exact = slice(part.start, part.stop), self.base.apply_pooling, self.exact_attention
        pixels, blocks, features = pixels[of_part], blocks[of_part], features[of_part]

        def query_patches() -> list[Tensor]:
            count = features.shape[1]
            return choose_query_patches_in_rows(count, math.isqrt(count), exact, features.device)

        def attention() -> Tensor:
            patches = query_patches()
            incoming = torch.stack([frame.incoming(patches) for frame in blocks])  # [frames, patches]
            return shrunk(incoming[..., None]).transpose(1, 2)

        def shrunk_row(per_patch: Tensor) -> Tensor:
            return shrunk(per_patch).flatten(0, 1)

        placing = Placing(query_patches, lambda masses: shrunk(masses[..., None]).flatten(), shrunk_row, shrunk_row)
        return {
            "read_attention": attention,
            "read_keys": lambda: shrunk_row(torch.stack([frame.keys.flatten(1) for frame in blocks]).float()),
            "read_hidden": lambda: shrunk_row(features),
            "project": self.base.multi_modal_projector,
            "requested": placing.reads(of_entries(requested, of_part)),
            "read_pixels": lambda: list(pixels.detach().cpu()),
        }

    def _tiles(self, sizes: Any, images_of_samples: Any | None) -> list[int]:
        """How many tiles the tower encodes for each image: one if its sample has several images."""
        # imported here, because plans import the family modules too and do not need transformers
        from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

        config, tiled = self.model.config, [True] * len(sizes)
        if images_of_samples is not None:
            tiled = [count == 1 for count in map(int, images_of_samples) for _ in range(count)]
        pinpoints, pixels = config.image_grid_pinpoints, config.vision_config.image_size
        return [
            image_size_to_num_patches(size, pinpoints, pixels) if many else 1
            for size, many in zip(sizes, tiled, strict=True)
        ]

    def _image(
        self, span: Tensor, packing: Packing, blocks: list[PatchAttention], features: Tensor, requested: RecordedReads
    ) -> ImageSignals:
        """The signals of an image, given `blocks`, `features` [tiles, patches, v] and requested reads of its tiles."""
        grid, content = packing.layout(len(blocks))

        def query_patches() -> list[Tensor]:
            return choose_query_patches_in_rows(packing.side**2, packing.side, self.exact_attention, span.device)

        def attention() -> Tensor:
            patches = query_patches()
            incoming = torch.stack([tile.incoming(patches) for tile in blocks])  # [tiles, patches]
            return packing(incoming[..., None]).view(1, 1, -1)

        placing = Placing(query_patches, lambda masses: packing(masses[..., None])[:, 0], packing, packing)

        return ImageSignals(
            grid=grid,
            span=span,
            content=content,
            read_attention=attention,
            read_keys=lambda: packing(torch.stack([tile.keys.flatten(1) for tile in blocks]).float()),
            read_hidden=lambda: packing(features),
            pack=torch.arange(grid.size, device=span.device),
            project=self.base.multi_modal_projector,
            requested=placing.reads(requested),
        )


def _read_tiles(tiles: Tensor, packing: Packing) -> list[Tensor]:
    """The image of each view from its tiles [tiles, 3, h, w]; the grid is not resized."""
    packing = Packing(packing.base, packing.size, NEVER_RESIZED, packing.side)
    cells = patches_of_tiles(tiles.detach().cpu(), packing.side)  # [tiles x patches, 3, p, p]
    placed = packing(cells.flatten(1).unflatten(0, (len(tiles), -1)))
    return lay_out(placed.unflatten(1, cells.shape[1:]), packing.layout(len(tiles))[0])
