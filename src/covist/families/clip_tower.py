"""Signals of a CLIP vision tower with a class token, shared by the families that use one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.family import Family, Removable, SignalSink
from covist.contract.pixels import lay_out, patches_of_tiles
from covist.contract.profile import narrowed
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.errors import CovistError
from covist.families.hooks import Scratch, WrappedMethod
from covist.grid import Grid
from covist.plan import Geometry

CLIP_SIDE, CLIP_PATCH = 336, 14
"""Pixels of the published towers, CLIP ViT-L/14."""


@dataclass(frozen=True)
class TowerOutput:
    """What a call of `get_image_features` was given and what the tower computed for all its tiles."""

    arguments: dict[str, Any]
    spans: Sequence[Tensor]  # [n, d] each, an image's embeddings as the prompt receives them
    captured: dict[
        int, tuple[EncoderLayer, Tensor]
    ]  # encoder layer -> what its attention read, class output [tiles, v]
    features: Tensor  # [tiles, patches, v] what feeds the projector


class ClipTowerFamily(Family):
    """A family whose encoder is a CLIP vision tower and whose projector reads one of its hidden states."""

    tower_types = ("clip_vision_model",)
    encoder_signal = "attention of the class token"
    shallow_tower = {"num_hidden_layers": 2}

    def __init__(self, model: nn.Module):
        super().__init__(model)
        config = self.model.config
        if config.vision_feature_select_strategy != "default":
            raise CovistError(
                f"vision_feature_select_strategy must be 'default', not {config.vision_feature_select_strategy!r}"
            )
        self._require_encoder_layers()

    def _require_encoder_layers(self) -> None:
        """The projector must read outputs of encoder layers: only those have an attention to take evidence from."""
        selected = self.model.config.vision_feature_layer
        count = len(self.base.vision_tower.encoder.layers)
        for index in [selected] if isinstance(selected, int) else selected:
            if not (1 <= index <= count or -count <= index <= -1):
                raise CovistError(
                    f"vision_feature_layer={selected!r}: the vision tower has {count} encoder layers, whose outputs "
                    f"are 1 to {count} or -{count} to -1"
                )

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {
            "model_type": "clip_vision_model",
            "hidden_size": 64 * heads,
            "intermediate_size": 256 * heads,
            "num_hidden_layers": 24,
            "num_attention_heads": heads,
            "image_size": CLIP_SIDE,
            "patch_size": CLIP_PATCH,
            "projection_dim": 48 * heads,
        }

    @property
    def feature_layers(self) -> list[int]:
        """Indices of the encoder layers whose outputs feed the projector; the last of them gives the evidence."""
        selected = self.model.config.vision_feature_layer
        count = len(self.base.vision_tower.encoder.layers)
        # hidden state 0 is the embedding, hidden state i the output of layer i - 1
        return [index % (count + 1) - 1 for index in ([selected] if isinstance(selected, int) else selected)]

    def capture(self, sink: SignalSink, encoder_layers: Sequence[int | float] = ()) -> list[Removable]:
        layers = self.base.vision_tower.encoder.layers
        depths = (int(depth * len(layers)) if isinstance(depth, float) else depth for depth in encoder_layers)
        wanted = {index % len(layers): layers[index] for index in (*self.feature_layers, *depths)}
        taps = {index: _LayerTap(layer) for index, layer in wanted.items()}
        scratch = Scratch()

        def remember_features(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            scratch.leave("features", inputs[0].detach())

        def assemble(arguments: dict[str, Any], output: Any) -> None:
            self._require_configured_features(arguments)
            # The signals own what they need from here on; nothing of this call stays behind in the taps.
            captured = {index: tap.take() for index, tap in taps.items()}
            spans = output.pooler_output if hasattr(output, "pooler_output") else output[1]
            sink(self.images(TowerOutput(arguments, spans, captured, scratch.take()["features"])))

        return [
            *(handle for tap in taps.values() for handle in tap.handles),
            self.base.multi_modal_projector.register_forward_pre_hook(remember_features),
            WrappedMethod(self.base, "get_image_features", assemble),
        ]

    def _require_configured_features(self, arguments: dict[str, Any]) -> None:
        """The taps sit at the configured layers, so that a single call cannot choose others."""
        for name in ("vision_feature_layer", "vision_feature_select_strategy"):
            configured, given = getattr(self.model.config, name), arguments.get(name)
            if given not in (None, configured):
                raise CovistError(
                    f"{name}={given!r}: under compression a call must use the model's own, {configured!r}"
                )

    @abstractmethod
    def images(self, output: TowerOutput) -> list[ImageSignals]:
        """Split what the tower computed for all tiles into images."""

    def tower_signals(self, output: TowerOutput, tiles: slice, pack: Tensor) -> dict[str, Any]:
        """The `ImageSignals` fields that come from the tower, for the tiles of one image packed as `pack` says."""
        layers = {
            index: EncoderLayer(layer.class_query[tiles], layer.class_key[tiles], layer.keys[tiles], layer.heads)
            for index, (layer, _) in output.captured.items()
        }
        feeding = layers[self.feature_layers[-1]]
        own = output.features[tiles]
        tower = self.base.vision_tower
        return {
            "pack": pack,
            "read_attention": feeding.attention,
            "read_keys": lambda: feeding.keys.flatten(0, 1)[pack],
            "read_hidden": lambda: own.flatten(0, 1)[pack],
            "project": self.base.multi_modal_projector,
            "class_features": torch.cat([output.captured[index][1][tiles] for index in self.feature_layers], dim=-1),
            # several layers that feed the projector lie side by side
            "text_space": lambda hidden: tower.post_layernorm(hidden[..., -tower.config.hidden_size :]),
            "feeding": feeding,
            "layers": layers,
        }


class _LayerTap:
    """Keeps class query, keys and class output of one encoder layer until they are taken."""

    def __init__(self, layer: Any):
        self._heads: int = layer.self_attn.num_heads
        self._scratch = Scratch()
        self.handles: list[Removable] = [
            layer.self_attn.q_proj.register_forward_hook(self._keep("query", slice(0, 1))),
            layer.self_attn.k_proj.register_forward_hook(self._keep("keys", slice(None))),
            layer.register_forward_hook(self._keep("output", slice(0, 1))),
        ]

    def _keep(self, name: str, rows: slice) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            self._scratch.leave(name, states.detach()[:, rows])

        return hook

    def take(self) -> tuple[EncoderLayer, Tensor]:
        seen = self._scratch.take()
        # The class rows are copied so that they do not keep the full projection outputs alive.
        query, output = seen["query"][:, 0].clone(), seen["output"][:, 0].clone()
        keys = seen["keys"]
        return EncoderLayer(query, keys[:, 0], keys[:, 1:], self._heads), output


def read_tiles(tiles: Tensor, side: int, pack: Tensor, grid: Grid) -> list[Tensor]:
    """The image of each view, from the tiles [tiles, 3, h, w] of an image packed as `pack` says."""
    return lay_out(patches_of_tiles(tiles.detach().cpu(), side)[pack.cpu()], grid)


def patches_per_side(model: Any) -> int:
    vision = model.config.vision_config
    return vision.image_size // vision.patch_size
