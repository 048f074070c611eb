"""Signals of vision towers as vLLM builds them: fused projections, heads spread over ranks, layers cut off.

The families are those of transformers; what differs is where the same numbers are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.family import Removable
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.families.clip_tower import ClassTokenSeen
from covist.families.hooks import Scratch
from covist.families.llava import Llava
from covist.families.llava_next import NEWLINE, LlavaNext, PackedLayout, layout_of
from covist.families.patch_attention import PatchAttention
from covist.families.projected import TowerOutput
from covist.families.qwen2_5_vl import Qwen25VL
from covist.families.qwen3_vl import Qwen3VL
from covist.families.qwen_tower import Encoded

Gather = Callable[[Tensor], Tensor]
"""Joins what the ranks hold of the last dimension."""


def joined_projections(output: Any, gather: Gather) -> list[Tensor]:
    """Queries, keys and values [..., heads x width] of all ranks, from the output of a fused projection."""
    fused = output[0] if isinstance(output, tuple) else output
    return [gather(part.contiguous()) for part in fused.detach().chunk(3, dim=-1)]


# -- CLIP ------------------------------------------------------------------------------------------------------------


class FusedLayerTap:
    """Keeps class query, keys and class output of one encoder layer until they are taken."""

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

    def take(self) -> ClassTokenSeen:
        seen = self._scratch.take()
        queries, keys = seen["projections"]
        return EncoderLayer(queries[:, 0].clone(), keys[:, 0], keys[:, 1:], self._heads), seen["output"]


class ServedClipTower:
    """Before a family with a CLIP tower: where vLLM keeps its layers, and how images are read without wrapped calls."""

    model: Any
    gather: Gather
    post_layernorm: nn.Module | None = None
    """Of the checkpoint: vLLM leaves it out, CLIP's text space needs it."""

    @property
    def base(self) -> Any:
        return self.model

    @property
    def encoder_layers(self) -> Sequence[Any]:
        return [*self.model.vision_tower.vision_model.encoder.layers, *self.model.further_layers.layers.values()]

    @staticmethod
    def depths(config: Any, wanted: Sequence[int | float]) -> list[int]:
        """Which layers of the whole tower a method names by indices or fractions of the depth."""
        count = config.vision_config.num_hidden_layers
        return [range(count)[int(depth * count) if isinstance(depth, float) else depth] for depth in wanted]

    def watched_layers(self, wanted: Sequence[int | float]) -> list[int]:
        return list(dict.fromkeys((*self.feature_layers, *self.depths(self.model.config, wanted))))

    @property
    def feature_layers(self) -> list[int]:
        """vLLM builds no layer after the deepest one that is read, so negative indices count from the whole tower."""
        selected, count = self.model.config.vision_feature_layer, self.model.config.vision_config.num_hidden_layers
        chosen = [selected] if isinstance(selected, int) else selected
        return [index % (count + 1) - 1 for index in chosen]

    def tap(self, layer: Any) -> Any:
        return FusedLayerTap(layer, self.model.config.vision_config.num_attention_heads, self.gather)

    def watch(self, encoder_layers: Sequence[int | float]) -> None:
        """Keep what the tower computes from now on."""
        family: Any = self
        self._taps = {index: self.tap(self.encoder_layers[index]) for index in family.watched_layers(encoder_layers)}
        self._scratch = Scratch()

        def remember_features(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._scratch.leave("features", inputs[0].detach())

        self.model.multi_modal_projector.register_forward_pre_hook(remember_features)

    def read(self, arguments: dict[str, Any], spans: Sequence[Tensor]) -> list[ImageSignals]:
        """Signals of the images that were just encoded."""
        pixels = arguments["pixel_values"]
        if isinstance(pixels, (list, tuple)):  # images of different numbers of tiles
            arguments = arguments | {"pixel_values": torch.cat([*pixels])}
        captured = {index: tap.take() for index, tap in self._taps.items()}
        family: Any = self
        return family.images(TowerOutput(arguments, spans, captured, self._scratch.take()["features"]))

    def tower_signals(self, output: Any, tiles: slice, pack: Tensor) -> dict[str, Any]:
        own: Any = super()
        signals = own.tower_signals(output, tiles, pack)
        norm, width = self.post_layernorm, self.model.config.vision_config.hidden_size
        signals["text_space"] = None if norm is None else lambda hidden: norm(hidden[..., -width:])
        return signals


class ServedLlava(ServedClipTower, Llava):
    """LLaVA-1.5."""


class ServedLlavaNext(ServedClipTower, LlavaNext):
    """LLaVA-NeXT, whose tiles vLLM packs by a method of its own."""

    def packed_layout(self, size: Any, tiles: int, device: torch.device | str = "cpu") -> PackedLayout:
        side = self.model.config.vision_config.image_size // self.model.config.vision_config.patch_size
        numbers = torch.arange(tiles * side * side, dtype=torch.float64, device="cpu").view(tiles, side * side, 1)
        # The model's own method, with a newline that is as narrow as a number.
        packer = SimpleNamespace(config=self.model.config, image_newline=numbers.new_tensor([NEWLINE]))
        pack = type(self.model)._merge_image_patch_embeddings
        packed = pack(packer, torch.as_tensor(size).cpu(), numbers, strategy="spatial_unpad")
        return layout_of(packed[:, 0].long().to(device), side)


# -- Qwen ------------------------------------------------------------------------------------------------------------


class FusedBlockTap:
    """Keeps what a block of Qwen's tower and its merger received until it is taken."""

    def __init__(self, tower: Any, block: Any, heads: int, gather: Gather):
        self._heads, self._gather, self._scratch = heads, gather, Scratch()
        block.attn.register_forward_pre_hook(self._keep_rotary, with_kwargs=True)
        block.attn.qkv.register_forward_hook(self._keep_projections)
        # vLLM calls the merger past its hooks, but not the norm that it begins with
        first_norm = getattr(tower.merger, "ln_q", None) or tower.merger.norm
        first_norm.register_forward_pre_hook(self._keep_features)

    def _keep_rotary(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        halves = (kwargs["rotary_pos_emb_cos"], kwargs["rotary_pos_emb_sin"])  # [patches, w / 2] each
        self._scratch.leave("rotary", tuple(torch.cat([half, half], -1) for half in halves))

    def _keep_projections(self, module: nn.Module, inputs: Any, output: Any) -> None:
        queries, keys, _ = joined_projections(output, self._gather)  # [patches, 1, heads x w]
        self._scratch.leave("block", [part[:, 0].unflatten(-1, (self._heads, -1)) for part in (queries, keys)])

    def _keep_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._scratch.leave("features", inputs[0].detach().flatten(0, -2))

    def take(self) -> tuple[PatchAttention, Tensor]:
        """What the block computed, and the merger's input [patches, v]."""
        seen = self._scratch.take()
        queries, keys = seen["block"]
        return PatchAttention(queries, keys, seen["rotary"]), seen["features"]


class ServedQwenTower:
    """Before a family with Qwen's tower: where vLLM keeps its parts, and how images are read without wrapped calls."""

    model: Any
    gather: Gather

    @property
    def base(self) -> Any:
        return self.model

    @property
    def decoder(self) -> Any:
        """The layers, and what families read of the rotary module; vLLM has one of its own in every layer."""
        text = self.model.config.get_text_config()
        frequencies = range((getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads) // 2)
        rotary = SimpleNamespace(mrope_section=text.rope_parameters["mrope_section"], inv_freq=frequencies)
        return SimpleNamespace(layers=self.model.language_model.model.layers, rotary_emb=rotary)

    def watch(self, encoder_layers: Sequence[int | float]) -> None:
        """Keep what the tower computes from now on; it has no class token, so `encoder_layers` name nothing here."""
        family: Any = self
        heads = self.model.config.vision_config.num_heads
        self._tap = FusedBlockTap(self.model.visual, family.evidence_block, heads, self.gather)

    def read(self, arguments: dict[str, Any], spans: Sequence[Tensor]) -> list[ImageSignals]:
        """Signals of the images that were just encoded; what follows the embeddings in a span is for later layers."""
        family: Any = self
        width = self.model.config.get_text_config().hidden_size
        own = [span[:, :width] for span in spans]
        seen = Encoded(family, own, spans, arguments["pixel_values"], *self._tap.take())
        return list(seen.signals(arguments["image_grid_thw"], is_video=False))


class ServedQwen25VL(ServedQwenTower, Qwen25VL):
    """Qwen2.5-VL."""


class ServedQwen3VL(ServedQwenTower, Qwen3VL):
    """Qwen3-VL."""

    def companions(self, output: Sequence[Tensor], number: int) -> dict[int, Tensor]:
        width = self.model.config.get_text_config().hidden_size
        _, *levels = output[number].split(width, dim=-1)
        return {level + 1: features for level, features in enumerate(levels)}
