"""Signals of vision towers as vLLM builds them: fused projections, heads spread over ranks, missing last layers.

The families are those of transformers; only the places of the same values differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.vision_utils import get_vision_window_index

from covist.contract.encoder import EncoderRead, EncoderRequest, LayerRun
from covist.contract.family import Removable
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.families.clip_tower import ClassTokenRecord, run_layer
from covist.families.encoding import Encoding
from covist.families.hooks import Scratch
from covist.families.llava import Llava
from covist.families.llava_next import NEWLINE, LlavaNext, PackedLayout, layout_of
from covist.families.patch_attention import PatchAttention
from covist.families.pixels import shown_pixels
from covist.families.projected import TowerOutput
from covist.families.qwen2_5_vl import Qwen25VL
from covist.families.qwen3_vl import Qwen3VL
from covist.families.reads import ReadableTower, ReadTaps

Gather = Callable[[Tensor], Tensor]
"""Joins the parts of the last dimension from all ranks."""


def joined_projections(output: Any, gather: Gather) -> list[Tensor]:
    """Queries, keys and values [..., heads x width] of all ranks, from the output of a fused projection."""
    fused = output[0] if isinstance(output, tuple) else output
    return [gather(part.contiguous()) for part in fused.detach().chunk(3, dim=-1)]


class FusedAttentionTap:
    """Stores queries, keys and values of a block with a fused projection until they are taken.

    The projection's output is [entries, tokens, 3 heads x w], or [tokens, 1, 3 heads x w] in a tower with rotary
    positions, which packs all images into one row. Nothing is stored while `is_requested` returns False.
    """

    def __init__(
        self,
        attention: Any,
        projection: Any,
        heads: int,
        gather: Gather,
        is_requested: Callable[[], bool] | None = None,
    ):
        self._heads, self._gather, self._scratch = heads, gather, Scratch(is_requested)
        self.handles: list[Removable] = [
            attention.register_forward_pre_hook(self._keep_rotary, with_kwargs=True),
            projection.register_forward_hook(self._keep_projections),
        ]

    def _keep_rotary(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if "rotary_pos_emb_cos" in kwargs:
            halves = (kwargs["rotary_pos_emb_cos"], kwargs["rotary_pos_emb_sin"])  # [patches, w / 2] each
            self._scratch.leave("rotary", tuple(torch.cat([half, half], -1) for half in halves))

    def _keep_projections(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._scratch.leave("projections", joined_projections(output, self._gather))

    def take(self) -> list[PatchAttention]:
        """The attention of each entry of the encoder's batch."""
        left = self._scratch.take()
        rotary = left.get("rotary")
        parts = [part if rotary is None else part.transpose(0, 1) for part in left["projections"]]
        entries = zip(*(part.unflatten(-1, (self._heads, -1)) for part in parts), strict=True)
        return [PatchAttention(queries, keys, rotary, values) for queries, keys, values in entries]


# -- CLIP ------------------------------------------------------------------------------------------------------------


class FusedLayerTap:
    """Stores class query, keys and class output of one encoder layer until they are taken."""

    def __init__(self, layer: Any, heads: int, gather: Gather):
        self._heads, self._gather, self._scratch = heads, gather, Scratch()
        self.handles: list[Removable] = [
            layer.self_attn.qkv_proj.register_forward_hook(self._keep_projections),
            layer.register_forward_hook(self._keep_output),
        ]

    def _keep_projections(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._scratch.leave("projections", joined_projections(output, self._gather)[:2])

    def _keep_output(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._scratch.leave("output", output.detach()[:, 0].clone())

    def take(self) -> ClassTokenRecord:
        left = self._scratch.take()
        queries, keys = left["projections"]
        return EncoderLayer(queries[:, 0].clone(), keys[:, 0], keys[:, 1:], self._heads), left["output"]


class ServedClipTower:
    """A mixin before a family with a CLIP tower: where vLLM has its layers, and how images are read."""

    model: Any
    gather: Gather
    post_layernorm: nn.Module | None = None
    """Of the checkpoint: vLLM omits it, but CLIP's text space needs it."""

    @property
    def base(self) -> Any:
        return self.model

    @property
    def encoder_layers(self) -> Sequence[Any]:
        return [*self.model.vision_tower.vision_model.encoder.layers, *self.model.further_layers.layers.values()]

    @staticmethod
    def depths(config: Any, requests: Sequence[EncoderRequest]) -> list[int]:
        """The layers of the whole tower that a method names, by index or as a fraction of the depth."""
        count = config.vision_config.num_hidden_layers
        numbers = [depth for depth in requests if not isinstance(depth, EncoderRead)]
        return [range(count)[int(depth * count) if isinstance(depth, float) else depth] for depth in numbers]

    def watched_layers(self, requests: Sequence[EncoderRequest]) -> list[int]:
        return list(dict.fromkeys((*self.feature_layers, *self.depths(self.model.config, requests))))

    @property
    def feature_layers(self) -> list[int]:
        """Indices in the whole tower, of which vLLM builds only the layers up to the deepest that it reads."""
        selected, count = self.model.config.vision_feature_layer, self.model.config.vision_config.num_hidden_layers
        chosen = [selected] if isinstance(selected, int) else selected
        return [index % (count + 1) - 1 for index in chosen]

    @property
    def _heads(self) -> int:
        return self.model.config.vision_config.num_attention_heads

    def tap(self, layer: Any) -> Any:
        return FusedLayerTap(layer, self._heads, self.gather)

    def _attention_tap(self, layer: Any, is_requested: Callable[[], bool]) -> Any:
        attention = layer.self_attn
        return FusedAttentionTap(attention, attention.qkv_proj, self._heads, self.gather, is_requested)

    def run_layer(self, layer: Any, states: Tensor) -> LayerRun:
        """Run a layer with a fused projection, of which this rank has some heads."""
        attention, vision = layer.self_attn, self.model.config.vision_config
        ran = run_layer(
            layer,
            states,
            project=lambda normed: attention.qkv_proj.forward(normed)[0].chunk(3, -1),
            mix=lambda mixed: attention.out_proj(mixed)[0],
            head_width=vision.hidden_size // vision.num_attention_heads,
        )
        values = self.gather(ran.values.transpose(0, 1).flatten(1)).unflatten(-1, (self._heads, -1)).transpose(0, 1)
        return LayerRun(ran.states, self.gather(ran.attention.T.contiguous()).T, values)

    def watch(self, requests: Sequence[EncoderRequest]) -> None:
        """Record what the tower computes from now on."""
        family: Any = self
        layers, count = self.encoder_layers, self.model.config.vision_config.num_hidden_layers
        self._taps = {index: self.tap(layers[index]) for index in family.watched_layers(requests)}
        whole = [*layers, *[None] * (count - len(layers))]  # depths also count layers that vLLM omits
        tower = ReadableTower(whole, self.feature_layers[-1], self._attention_tap, has_class=True)
        self._reads = ReadTaps(tower, requests, None)
        self._scratch = Scratch()

        def remember_features(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._scratch.leave("features", inputs[0].detach())

        self.model.multi_modal_projector.register_forward_pre_hook(remember_features)

    def read(self, arguments: dict[str, Any], spans: Sequence[Tensor]) -> list[ImageSignals]:
        """Signals of the images that were just encoded."""
        pixels = arguments["pixel_values"]
        if isinstance(pixels, (list, tuple)):  # images with different numbers of tiles
            arguments = arguments | {"pixel_values": torch.cat([*pixels])}
        captured = {index: tap.take() for index, tap in self._taps.items()}
        features, family = self._scratch.take()["features"], cast(Any, self)
        return family.images(TowerOutput(arguments, spans, captured, features, self._reads.take()))

    def tower_signals(self, output: Any, tiles: slice, pack: Tensor) -> dict[str, Any]:
        own: Any = super()
        signals = own.tower_signals(output, tiles, pack)
        norm, width = self.post_layernorm, self.model.config.vision_config.hidden_size
        signals["text_space"] = None if norm is None else lambda hidden: norm(hidden[..., -width:])
        return signals


class ServedLlava(ServedClipTower, Llava):
    """LLaVA-1.5."""


class ServedLlavaNext(ServedClipTower, LlavaNext):
    """LLaVA-NeXT, whose tiles vLLM packs with its own method."""

    def packed_layout(self, size: Any, tiles: int, device: torch.device | str = "cpu") -> PackedLayout:
        side = self.model.config.vision_config.image_size // self.model.config.vision_config.patch_size
        numbers = torch.arange(tiles * side * side, dtype=torch.float64, device="cpu").view(tiles, side * side, 1)
        # The model's own method, applied to numbers instead of embeddings.
        packer = SimpleNamespace(config=self.model.config, image_newline=numbers.new_tensor([NEWLINE]))
        pack = type(self.model)._merge_image_patch_embeddings
        packed = pack(packer, torch.as_tensor(size).cpu(), numbers, strategy="spatial_unpad")
        return layout_of(packed[:, 0].long().to(device), side)


# -- Qwen ------------------------------------------------------------------------------------------------------------


class ServedQwenTower:
    """A mixin before a family of Qwen's: where vLLM has its parts, and how images are read."""

    model: Any
    gather: Gather

    @property
    def base(self) -> Any:
        return self.model

    @property
    def decoder(self) -> Any:
        return self.model.language_model.model

    def check_structure(self) -> None:
        """vLLM's classes follow a pattern of their own."""

    def _block_tap(self, block: Any, is_requested: Callable[[], bool] | None = None) -> FusedAttentionTap:
        heads = self.model.config.vision_config.num_heads
        return FusedAttentionTap(block.attn, block.attn.qkv, heads, self.gather, is_requested)

    def watch(self, requests: Sequence[EncoderRequest]) -> None:
        """Record what the tower computes from now on."""
        family: Any = self
        visual, scratch = self.model.visual, Scratch()
        last = len(visual.blocks) - 1
        evidence = visual.blocks[max(family.global_layers, default=last)]
        self._tap, self._scratch = self._block_tap(evidence), scratch
        tower = ReadableTower(visual.blocks, last, self._block_tap, global_layers=family.global_layers)
        self._reads = ReadTaps(tower, requests, None)

        def remember_features(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            scratch.leave("features", inputs[0].detach().flatten(0, -2))  # [patches, v]

        # vLLM bypasses the merger's hooks, but not those of its first norm
        first_norm = getattr(visual.merger, "ln_q", None) or visual.merger.norm
        first_norm.register_forward_pre_hook(remember_features)

    def read(self, arguments: dict[str, Any], spans: Sequence[Tensor]) -> list[ImageSignals]:
        """Signals of the images that were just encoded; in a span, features for later layers follow the embeddings."""
        family: Any = self
        visual, width = self.model.visual, self.model.config.get_text_config().hidden_size
        grids, merge = arguments["image_grid_thw"], visual.spatial_merge_size
        embeddings = torch.cat([span[:, :width] for span in spans])
        (block,), features = self._tap.take(), self._scratch.take()["features"]
        views = [[(int(rows) // merge, int(columns) // merge)] * int(frames) for frames, rows, columns in grids]
        sizes = [rows * columns * merge**2 for of_image in views for rows, columns in of_image]
        folding = MergedFolding(embeddings, features, visual.merger, merge**2, self.order(grids))
        bounds = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        pixels = shown_pixels(arguments, self.model.config, [view for own in views for view in own], is_video=False)
        recorded = {
            read: [raw[0].of(own) for own in bounds] if isinstance(raw[0], PatchAttention) else raw
            for read, raw in self._reads.take().items()
        }
        towers = [[block.of(own) for own in bounds]]
        made = Encoding(views, folding, towers, recorded, family.placed, pixels, exact=family.exact_attention)
        images = list(made.signals())
        for image, span in zip(images, spans, strict=True):
            _, *levels = span.split(width, dim=-1)
            image.companions.update((level + 1, features) for level, features in enumerate(levels))
        return images

    def order(self, grids: Tensor) -> Tensor:
        """The place in the tower of each token in reading order."""
        return torch.arange(int(grids.prod(-1).sum()) // self.model.visual.spatial_merge_size**2)


@dataclass
class MergedFolding:
    """Tokens of which each is merged from as many patches that follow each other in the tower."""

    embeddings: Tensor  # [N, d]
    given: Tensor  # [patches, v] input of the merger
    merger: Any
    patches: int  # of a token
    order: Tensor  # [N] the place in the tower of each token
    class_is_last: bool = False

    @cached_property
    def features(self) -> Tensor:
        """[N, patches x v]."""
        return self.given.unflatten(0, (len(self.order), -1))[self.order.to(self.given.device)].flatten(1)

    def projector(self, features: Tensor) -> Tensor:
        """Token features [*, patches x v] -> embeddings [*, d]."""
        merged = self.merger(features.reshape(-1, features.shape[-1] // self.patches))
        return merged.view(*features.shape[:-1], -1)

    def patches_of(self, count: int) -> Tensor | None:
        """The patches of each token [N, count], in the order of the tower."""
        if count != self.patches:
            return None
        numbers = torch.arange(len(self.order) * count, device=self.embeddings.device).view(-1, count)
        return numbers[self.order.to(self.embeddings.device)]


class ServedQwen25VL(ServedQwenTower, Qwen25VL):
    """Qwen2.5-VL, whose tower orders patches by window."""

    def order(self, grids: Tensor) -> Tensor:
        visual, parts, first = self.model.visual, [], 0
        for grid in grids:
            in_windows, _ = get_vision_window_index(
                grid[None], visual.spatial_merge_size, visual.window_size, visual.patch_size
            )
            parts.append(in_windows.argsort() + first)
            first += len(in_windows)
        return torch.cat(parts)


class ServedQwen3VL(ServedQwenTower, Qwen3VL):
    """Qwen3-VL."""
