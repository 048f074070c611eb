"""Qwen2.5-VL: any resolution, no class token, windows in the encoder, 2x2 patches per token, 3-D positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.family import Family, Removable, SignalSink
from covist.contract.pixels import lay_out
from covist.contract.profile import FIRST_SPECIAL, narrowed
from covist.contract.signals import ImageSignals
from covist.errors import CovistError
from covist.families.hooks import Scratch, WrappedMethod
from covist.families.incoming import incoming_attention, patches_that_ask
from covist.families.registry import register_family
from covist.grid import Grid
from covist.plan import Geometry


@register_family
class Qwen25VL(Family):
    name = "qwen2.5-vl"
    model_classes = ("Qwen2_5_VLForConditionalGeneration",)
    needs_clip_text = False
    processor = "Qwen2_5_VLProcessor"
    encoder_signal = "incoming attention of the last full-attention block"
    token_count = "one per 28 x 28 pixels"
    video = "runs uncompressed"
    presets = (Geometry("qwen2.5-vl-7b", 28, 3584, 18944, 28, 4, tokens=1296, budgets=(512, 256, 128)),)
    shallow_tower = {"depth": 1, "fullatt_block_indexes": [0]}

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {
            "depth": 32,
            "hidden_size": 80 * heads,
            "intermediate_size": round(3420 * scale),
            "num_heads": heads,
            "patch_size": 14,
            "spatial_merge_size": 2,
        }

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        from transformers import Qwen2_5_VLConfig

        rotary = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
        return Qwen2_5_VLConfig(
            vision_config={"out_hidden_size": text["hidden_size"], **tower},
            text_config={**text, "rope_parameters": rotary},
            image_token_id=FIRST_SPECIAL,
            video_token_id=FIRST_SPECIAL + 1,
            vision_start_token_id=FIRST_SPECIAL + 2,
            vision_end_token_id=FIRST_SPECIAL + 3,
        )

    @classmethod
    def random_input(
        cls, geometry: Geometry, config: Any, generator: torch.Generator
    ) -> tuple[list[int], dict[str, Tensor]]:
        vision = config.vision_config
        side = isqrt(geometry.tokens) * vision.spatial_merge_size  # patches of a square image
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        tokens = [config.vision_start_token_id, *[config.image_token_id] * geometry.tokens, config.vision_end_token_id]
        return tokens, {
            "pixel_values": torch.randn(side * side, width, generator=generator),
            "image_grid_thw": torch.tensor([[1, side, side]]),
        }

    def __init__(self, model: nn.Module):
        super().__init__(model)
        tower = self.base.visual
        full, depth = list(tower.fullatt_block_indexes), len(tower.blocks)
        if not full or not all(0 <= index < depth for index in full):
            raise CovistError(
                f"fullatt_block_indexes={full}: the vision tower has blocks 0 to {depth - 1}, and one of them at least "
                "must see the whole image"
            )

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
        tower = self.base.visual
        tap = _TowerTap(tower)

        def assemble(arguments: dict[str, Any], output: Any) -> None:
            spans = output.pooler_output if hasattr(output, "pooler_output") else output[1]
            sink(self._images(arguments["pixel_values"], arguments["image_grid_thw"], spans, tap.take()))

        return [
            *tap.handles,
            WrappedMethod(self.base, "get_image_features", assemble),
            WrappedMethod(self.base, "get_video_features", lambda arguments, output: tap.take()),
        ]

    def _images(
        self, pixels: Tensor, grids: Tensor, spans: Sequence[Tensor], block: _FullAttention
    ) -> list[ImageSignals]:
        # here, because plans import the family modules too and need no transformers
        from transformers.vision_utils import get_vision_window_index

        tower = self.base.visual
        window_order, _ = get_vision_window_index(grids, tower.spatial_merge_size, tower.window_size, tower.patch_size)
        signals, first = [], 0
        for span, (frames, height, width) in zip(spans, grids.tolist(), strict=True):
            merge = tower.spatial_merge_size
            tokens = frames * height * width // merge**2
            order = window_order[first : first + tokens].argsort().to(span.device)  # undoes the window order
            patches = slice(first * merge**2, (first + tokens) * merge**2)
            shape = (frames, height // merge, width // merge)
            image = _image(tower, span, shape, block.of(patches), order, self.exact_attention)
            image.read_pixels = partial(_read_patches, pixels[patches], tower.config, image.grid)
            signals.append(image)
            first += tokens
        return signals


def _image(
    tower: Any, span: Tensor, shape: tuple[int, int, int], block: _FullAttention, order: Tensor, exact: bool
) -> ImageSignals:
    frames, rows, columns = shape

    def grouped(per_patch: Tensor) -> Tensor:
        """[patches, ...] in window order -> [N, patches of a token, ...] in reading order."""
        return per_patch.unflatten(0, (len(order), -1))[order]

    def attention() -> Tensor:
        asking = patches_that_ask(len(block.keys) // frames, tower.spatial_merge_size, exact, span.device)
        incoming = torch.cat([frame.incoming(asking) for frame in block.frames(frames)])  # [patches]
        return grouped(incoming).sum(1).view(frames, 1, rows * columns)

    return ImageSignals(
        grid=Grid(((rows, columns),) * frames),
        span=span.detach(),
        content=torch.ones(len(order), dtype=torch.bool, device=span.device),
        read_attention=attention,
        read_keys=lambda: grouped(block.keys.flatten(1)).float().mean(1),
        read_hidden=lambda: grouped(block.features).flatten(1),
        pack=torch.arange(len(order), device=span.device),
        project=partial(_merge, tower.merger, block.features.shape[-1]),
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


@dataclass(frozen=True)
class _FullAttention:
    """What the last full-attention block saw, per patch in window order, and what feeds the merger."""

    queries: Tensor  # [patches, heads, w] before rotary
    keys: Tensor  # [patches, heads, w] before rotary
    cos: Tensor  # [patches, w]
    sin: Tensor  # [patches, w]
    features: Tensor  # [patches, v] input of the merger

    def of(self, patches: slice) -> _FullAttention:
        return _FullAttention(*(getattr(self, name)[patches] for name in self.__dataclass_fields__))

    def frames(self, count: int) -> list[_FullAttention]:
        """Each frame by itself: attention stays inside a frame."""
        length = len(self.keys) // count
        return [self.of(slice(first, first + length)) for first in range(0, count * length, length)]

    def incoming(self, asking: Sequence[Tensor]) -> Tensor:
        """Attention that each patch receives: [patches]."""
        return incoming_attention(self.queries, self.keys, self.cos, self.sin, asking)


class _TowerTap:
    """Keeps what the last full-attention block and the merger received until it is taken."""

    def __init__(self, tower: Any):
        attention = tower.blocks[max(tower.fullatt_block_indexes)].attn
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

    def take(self) -> _FullAttention:
        seen = self._scratch.take()
        queries, keys, _ = seen["projections"].unbind(1)
        cos, sin = seen["rotary"]
        return _FullAttention(queries, keys, cos, sin, seen["features"])
