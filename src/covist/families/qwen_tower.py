"""The vision tower of the Qwen-VL families: any resolution, no class token, 2x2 patches per token, 3-D positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRequest
from covist.contract.family import Family, Removable, RequestedNow, SignalSink
from covist.contract.profile import FIRST_SPECIAL
from covist.contract.signals import ImageSignals
from covist.families.hooks import Running, Scratch, WrappedMethod
from covist.families.incoming import choose_query_patches
from covist.families.patch_attention import PatchAttention
from covist.families.reads import Placing, ReadableTower, ReadTaps, RecordedReads, of_patches
from covist.families.video import segments
from covist.grid import Grid
from covist.plan import Geometry
from covist.report.pixels import lay_out

PLACEHOLDERS: dict[str, Any] = {
    "image_token_id": FIRST_SPECIAL,
    "video_token_id": FIRST_SPECIAL + 1,
    "vision_start_token_id": FIRST_SPECIAL + 2,
    "vision_end_token_id": FIRST_SPECIAL + 3,
}
"""Token ids of models with random weights."""


def rotary_sections(*sections: int) -> dict[str, Any]:
    """Fields of a text configuration: the numbers of frequencies for time, height and width."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)}}


class QwenTowerFamily(Family):
    """A family with this tower. Families differ in the order of tokens and in what the decoder receives from it."""

    needs_clip_text = False
    encoder_signal = "incoming attention of the last block"
    video = "compressed"
    video_stand_in = "Qwen2Videos"
    rotary_sections: ClassVar[dict[str, Any]] = rotary_sections(16, 24, 24)
    timestamps: ClassVar[bool] = False
    """Whether every frame of a video is a separate run in the prompt."""

    @classmethod
    def random_input(
        cls, geometry: Geometry, config: Any, generator: torch.Generator
    ) -> tuple[list[int], dict[str, Tensor]]:
        vision, frames, is_video = config.vision_config, geometry.frames, geometry.frames > 1
        side = isqrt(geometry.tokens // frames) * vision.spatial_merge_size  # patches of a square image or frame
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels, grid = ("pixel_values_videos", "video_grid_thw") if is_video else ("pixel_values", "image_grid_thw")
        runs = frames if cls.timestamps else 1
        run = [config.video_token_id if is_video else config.image_token_id] * (geometry.tokens // runs)
        return [config.vision_start_token_id, *run, config.vision_end_token_id] * runs, {
            pixels: torch.randn(frames * side * side, width, generator=generator),
            grid: torch.tensor([[frames, side, side]]),
        }

    @property
    def evidence_block(self) -> Any:
        """The last block of the tower in which a patch sees the whole image."""
        return self.base.visual.blocks[-1]

    def order(self, grid: Tensor) -> Tensor:
        """The place in the tower of each token in reading order; `grid`: frames, rows and columns of patches."""
        return torch.arange(int(grid.prod()) // self.base.visual.spatial_merge_size**2)

    def companions(self, output: Any, number: int) -> dict[int, Tensor]:
        """`ImageSignals.companions` of one image, from the output of `get_image_features`."""
        return {}

    def rotary_axes(self) -> Sequence[int]:
        sections = self.decoder.rotary_emb.mrope_section
        return [number % 3 for number, width in enumerate(sections) for _ in range(width)]

    @property
    def visual_tokens(self) -> tuple[int, ...]:
        return (self.model.config.image_token_id, self.model.config.video_token_id)

    @property
    def global_blocks(self) -> Sequence[int]:
        """Blocks of the tower in which a patch sees the whole image; an empty sequence means all."""
        return ()

    def capture(
        self, sink: SignalSink, requests: Sequence[EncoderRequest] = (), requested_now: RequestedNow | None = None
    ) -> list[Removable]:
        blocks = self.base.visual.blocks
        tap = _TowerTap(self.base.visual, self.evidence_block)
        tower = ReadableTower(blocks, len(blocks) - 1, _BlockTap, global_layers=self.global_blocks)
        reads = ReadTaps(tower, requests, requested_now)
        running = Running()  # a tower may encode a video by calling `get_image_features`

        def assemble(pixels: str, grids: str, arguments: dict[str, Any], output: Any) -> None:
            spans = output.pooler_output if hasattr(output, "pooler_output") else output[1]
            encoded = Encoded(self, spans, output, arguments[pixels], *tap.take(), reads.take())
            sink(list(encoded.signals(arguments[grids], is_video=grids == "video_grid_thw")))

        of_images = partial(assemble, "pixel_values", "image_grid_thw")
        of_videos = partial(assemble, "pixel_values_videos", "video_grid_thw")
        return [
            *tap.handles,
            *reads.handles,
            WrappedMethod(self.base, "get_image_features", of_images, running),
            WrappedMethod(self.base, "get_video_features", of_videos, running),
        ]


@dataclass(frozen=True)
class Encoded:
    """Input and results of one call of the tower, for all images or videos; patches are in the tower's order."""

    family: QwenTowerFamily
    spans: Sequence[Tensor]  # [n, d] each, embeddings as the prompt receives them
    output: Any
    pixels: Tensor  # [patches, 3 * time * p * p]
    block: PatchAttention
    features: Tensor  # [patches, v] input of the merger
    requested: RecordedReads = field(default_factory=dict)  # what the running method requested from further blocks

    def signals(self, grids: Tensor, is_video: bool) -> Iterator[ImageSignals]:
        """Signals of every image, or of every segment of every video; `grids` [count, 3] holds their patch counts."""
        tower, first = self.family.base.visual, 0
        for number, (span, grid) in enumerate(zip(self.spans, grids, strict=True)):
            frames, height, width = grid.tolist()
            shape = (height // tower.spatial_merge_size, width // tower.spatial_merge_size)
            tokens = shape[0] * shape[1]
            order = self.family.order(grid).to(span.device)
            companions = self.family.companions(self.output, number)
            for part in segments(frames, tokens) if is_video else [range(frames)]:
                of_part = slice(part.start * tokens, part.stop * tokens)
                patches = slice(first + part.start * height * width, first + part.stop * height * width)
                signals = self._part(span[of_part], patches, order[of_part] - of_part.start, len(part), shape)
                signals.companions = {layer: features[of_part] for layer, features in companions.items()}
                if is_video:
                    signals.grid = Grid(signals.grid.views, "frames")
                    signals.continues = part.start > 0
                yield signals
            first += frames * height * width

    def _part(self, span: Tensor, patches: slice, order: Tensor, frames: int, shape: tuple[int, int]) -> ImageSignals:
        """Signals of some patches: whole frames of rows x columns tokens, with `order` their places in the tower."""
        tower, block, features = self.family.base.visual, self.block.of(patches), self.features[patches]
        grid, exact = Grid((shape,) * frames), self.family.exact_attention

        def grouped(per_patch: Tensor) -> Tensor:
            """[patches, ...] in the tower's order -> [N, patches of a token, ...] in reading order."""
            return per_patch.unflatten(0, (len(order), -1))[order]

        def query_patches() -> list[Tensor]:
            return choose_query_patches(len(features) // frames, tower.spatial_merge_size, exact, span.device)

        placing = Placing(
            query_patches,
            masses=lambda per_patch: grouped(per_patch.flatten()).sum(1),
            means=lambda per_patch: grouped(per_patch.flatten(0, 1)).float().mean(1),
            states=lambda per_patch: grouped(per_patch.flatten(0, 1)).flatten(1),
        )

        def attention() -> Tensor:
            incoming = torch.stack([placing.incoming(frame) for frame in block.split(frames)])  # [frames, patches]
            return placing.masses(incoming).view(frames, 1, -1)

        return ImageSignals(
            grid=grid,
            span=span.detach(),
            content=torch.ones(len(order), dtype=torch.bool, device=span.device),
            read_attention=attention,
            read_keys=lambda: placing.means(block.keys.flatten(1)[None]),
            read_hidden=lambda: placing.states(features[None]),
            pack=torch.arange(len(order), device=span.device),
            project=partial(_merge, tower.merger, features.shape[-1]),
            requested=placing.reads(of_patches(self.requested, patches, frames)),
            read_pixels=partial(_read_patches, self.pixels[patches], self.family.model.config.vision_config, grid),
        )


def _read_patches(patches: Tensor, config: Any, grid: Grid) -> list[Tensor]:
    """The image of each frame, from patches [patches, 3 * time * p * p] that are ordered token by token."""
    merge, side = config.spatial_merge_size, config.patch_size
    shape = (-1, merge, merge, config.in_channels, config.temporal_patch_size, side, side)
    # An image is one moment, repeated; a frame of a video covers a few moments, of which the first is shown.
    cells = patches.detach().cpu().view(shape)[:, :, :, :, 0]  # [N, merge, merge, 3, p, p]
    return lay_out(cells.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3), grid)


def _merge(merger: nn.Module, width: int, features: Tensor) -> Tensor:
    """Token features [*, patches x v] (the patches of a token side by side) -> decoder embeddings [*, d]."""
    return merger(features.reshape(-1, width)).view(*features.shape[:-1], -1)


class _BlockTap:
    """Keeps queries, keys and values of a block until they are taken; nothing while `is_requested` returns False."""

    def __init__(self, block: Any, is_requested: Callable[[], bool] | None = None):
        attention = block.attn
        self._heads: int = attention.num_heads
        self._scratch = Scratch(is_requested)
        self.handles: list[Removable] = [
            attention.register_forward_pre_hook(self._keep_rotary, with_kwargs=True),
            attention.qkv.register_forward_hook(self._keep_projections),
        ]

    def _keep_rotary(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self._scratch.leave("rotary", kwargs["position_embeddings"])

    def _keep_projections(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        projections = output.detach().unflatten(-1, (3, self._heads, -1))  # [patches, 3, heads, w]
        self._scratch.leave("projections", projections)

    def take(self) -> list[PatchAttention]:
        """One, for all patches of all images."""
        left = self._scratch.take()
        queries, keys, values = left["projections"].unbind(1)
        return [PatchAttention(queries, keys, left["rotary"], values)]


class _TowerTap:
    """Keeps queries, keys and values of a block and the merger's input until they are taken."""

    def __init__(self, tower: Any, block: Any):
        self._block, self._scratch = _BlockTap(block), Scratch()
        self.handles: list[Removable] = [
            *self._block.handles,
            tower.merger.register_forward_pre_hook(self._keep_features),
        ]

    def _keep_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._scratch.leave("features", inputs[0].detach())

    def take(self) -> tuple[PatchAttention, Tensor]:
        """The block's queries, keys and values, and the merger's input [patches, v]."""
        (block,) = self._block.take()
        return block, self._scratch.take()["features"]
