"""Signals of CLIP towers as vLLM builds them: fused projections, heads spread over ranks, missing last layers.

The families are those of transformers; only the places of the same values differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRead, EncoderRequest, LayerRun
from covist.contract.family import Removable
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.families.clip_tower import ClassTokenRecord, run_layer
from covist.families.hooks import Scratch
from covist.families.llava import Llava
from covist.families.llava_next import NEWLINE, LlavaNext, PackedLayout, layout_of
from covist.families.patch_attention import PatchAttention
from covist.families.projected import TowerOutput
from covist.families.reads import ReadableTower, ReadTaps
from covist.vllm.settings import PREFIX

Gather = Callable[[Tensor], Tensor]
"""Joins the parts of the last dimension from all ranks."""


def joined_projections(output: Any, gather: Gather) -> list[Tensor]:
    """Queries, keys and values [..., heads x width] of all ranks, from the output of a fused projection."""
    fused = output[0] if isinstance(output, tuple) else output
    return [gather(part.contiguous()) for part in fused.detach().chunk(3, dim=-1)]


class FusedAttentionTap:
    """Stores queries, keys and values of a layer with a fused projection until they are taken.

    Nothing is stored while `is_requested` returns False.
    """

    def __init__(self, projection: Any, heads: int, gather: Gather, is_requested: Callable[[], bool]):
        self._heads, self._gather, self._scratch = heads, gather, Scratch(is_requested)
        self.handles: list[Removable] = [projection.register_forward_hook(self._keep_projections)]

    def _keep_projections(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._scratch.leave("projections", joined_projections(output, self._gather))

    def take(self) -> list[PatchAttention]:
        """The attention of each entry of the encoder's batch."""
        parts = (part.unflatten(-1, (self._heads, -1)) for part in self._scratch.take()["projections"])
        return [PatchAttention(queries, keys, None, values) for queries, keys, values in zip(*parts, strict=True)]


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
        return FusedAttentionTap(layer.self_attn.qkv_proj, self._heads, self.gather, is_requested)

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


READERS: dict[str, type[Any]] = {
    "LlavaForConditionalGeneration": ServedLlava,
    "LlavaNextForConditionalGeneration": ServedLlavaNext,
}


def reader_for(config: Any, architecture: str | None = None) -> type[Any] | None:
    """The family that reads the vision tower of a model, if it is CLIP's."""
    name = architecture or (config.architectures or [""])[0]
    tower = getattr(getattr(config, "vision_config", None), "model_type", None)
    return READERS.get(name.removeprefix(PREFIX)) if tower == "clip_vision_model" else None
