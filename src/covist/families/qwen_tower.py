"""The vision tower of the Qwen-VL families: any resolution, no class token, 2x2 patches per token, 3-D positions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.family import Family, Removable, SignalSink
from covist.contract.pixels import lay_out
from covist.contract.signals import ImageSignals
from covist.families.hooks import Running, Scratch, WrappedMethod
from covist.families.incoming import patches_that_ask
from covist.families.patch_attention import PatchAttention
from covist.grid import Grid


class QwenTowerFamily(Family):
    """A family with this tower. What differs between them: the order of tokens, and what the decoder gets of it."""

    needs_clip_text = False

    @property
    def evidence_block(self) -> Any:
        """The last block of the tower in which a patch sees the whole image."""
        return self.base.visual.blocks[-1]

    def order(self, grid: Tensor) -> Tensor:
        """Where the tokens of an image (frames, rows and columns of patches), in reading order, stand in the tower."""
        return torch.arange(int(grid.prod()) // self.base.visual.spatial_merge_size**2)

    def companions(self, output: Any, number: int) -> dict[int, Tensor]:
        """`ImageSignals.companions` of one image, from what `get_image_features` returned."""
        return {}

    def rotary_axes(self) -> Sequence[int]:
        sections = self.decoder.rotary_emb.mrope_section
        return [number % 3 for number, width in enumerate(sections) for _ in range(width)]

    def passthrough_reason(self, input_ids: Tensor | None, kwargs: dict[str, Any]) -> str | None:
        encoded = kwargs.get("mm_encoder_outputs") or {}
        has_video = kwargs.get("pixel_values_videos") is not None or encoded.get("video") is not None
        if input_ids is not None and not has_video:
            has_video = bool((input_ids == self.model.config.video_token_id).any())
        return "video input is not compressed: this call runs as the plain model" if has_video else None

    def capture(self, sink: SignalSink, encoder_layers: Sequence[int | float] = ()) -> list[Removable]:
        tap = _TowerTap(self.base.visual, self.evidence_block)
        running = Running()  # a tower may encode a video by asking for the features of images

        def assemble(arguments: dict[str, Any], output: Any) -> None:
            sink(self._images(arguments["pixel_values"], arguments["image_grid_thw"], output, *tap.take()))

        return [
            *tap.handles,
            WrappedMethod(self.base, "get_image_features", assemble, running),
            WrappedMethod(self.base, "get_video_features", lambda arguments, output: tap.take(), running),
        ]

    def _images(
        self, pixels: Tensor, grids: Tensor, output: Any, block: PatchAttention, features: Tensor
    ) -> list[ImageSignals]:
        tower, signals, first = self.base.visual, [], 0
        spans = output.pooler_output if hasattr(output, "pooler_output") else output[1]
        for number, (span, grid) in enumerate(zip(spans, grids, strict=True)):
            frames, height, width = grid.tolist()
            patches = slice(first, first + frames * height * width)
            shape = (frames, height // tower.spatial_merge_size, width // tower.spatial_merge_size)
            order = self.order(grid).to(span.device)
            image = _image(tower, span, shape, block.of(patches), features[patches], order, self.exact_attention)
            image.companions = self.companions(output, number)
            image.read_pixels = partial(_read_patches, pixels[patches], tower.config, image.grid)
            signals.append(image)
            first = patches.stop
        return signals


def _image(
    tower: Any,
    span: Tensor,
    shape: tuple[int, int, int],
    block: PatchAttention,
    features: Tensor,
    order: Tensor,
    exact: bool,
) -> ImageSignals:
    """`block` and the merger's input `features` [patches, v] are those of this image, as the tower orders them."""
    frames, rows, columns = shape

    def grouped(per_patch: Tensor) -> Tensor:
        """[patches, ...] as the tower orders them -> [N, patches of a token, ...] in reading order."""
        return per_patch.unflatten(0, (len(order), -1))[order]

    def attention() -> Tensor:
        asking = patches_that_ask(len(block.keys) // frames, tower.spatial_merge_size, exact, span.device)
        incoming = torch.cat([frame.incoming(asking) for frame in block.split(frames)])  # [patches]
        return grouped(incoming).sum(1).view(frames, 1, rows * columns)

    return ImageSignals(
        grid=Grid(((rows, columns),) * frames),
        span=span.detach(),
        content=torch.ones(len(order), dtype=torch.bool, device=span.device),
        read_attention=attention,
        read_keys=lambda: grouped(block.keys.flatten(1)).float().mean(1),
        read_hidden=lambda: grouped(features).flatten(1),
        pack=torch.arange(len(order), device=span.device),
        project=partial(_merge, tower.merger, features.shape[-1]),
    )


def _read_patches(patches: Tensor, config: Any, grid: Grid) -> list[Tensor]:
    """The image of each frame, from patches [patches, 3 * time * p * p] in which those of a token follow each other."""
    merge, side = config.spatial_merge_size, config.patch_size
    shape = (-1, merge, merge, config.in_channels, config.temporal_patch_size, side, side)
    # An image is one moment, repeated: the first says it all.
    cells = patches.detach().cpu().view(shape)[:, :, :, :, 0]  # [N, merge, merge, 3, p, p]
    return lay_out(cells.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3), grid)


def _merge(merger: nn.Module, width: int, features: Tensor) -> Tensor:
    """Token features [*, patches x v] (the patches of a token side by side) -> decoder embeddings [*, d]."""
    return merger(features.reshape(-1, width)).view(*features.shape[:-1], -1)


class _TowerTap:
    """Keeps what a block of the tower and its merger received until it is taken."""

    def __init__(self, tower: Any, block: Any):
        attention = block.attn
        self._heads: int = attention.num_heads
        self._scratch = Scratch()
        self.handles: list[Removable] = [
            attention.register_forward_pre_hook(self._keep_rotary, with_kwargs=True),
            attention.qkv.register_forward_hook(self._keep_projections),
            tower.merger.register_forward_pre_hook(self._keep_features),
        ]

    def _keep_rotary(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self._scratch.leave("rotary", kwargs["position_embeddings"])

    def _keep_projections(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        projections = output.detach().unflatten(-1, (3, self._heads, -1))  # [patches, 3, heads, w]
        self._scratch.leave("projections", projections)

    def _keep_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._scratch.leave("features", inputs[0].detach())

    def take(self) -> tuple[PatchAttention, Tensor]:
        """What the block computed, and the merger's input [patches, v]."""
        seen = self._scratch.take()
        queries, keys, _ = seen["projections"].unbind(1)
        return PatchAttention(queries, keys, seen["rotary"]), seen["features"]
