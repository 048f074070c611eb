"""Signals of a CLIP vision tower with a class token, shared by the families that use one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRead, EncoderRequest, LayerRun, Tower
from covist.contract.family import Removable
from covist.contract.signals import EncoderLayer
from covist.families.hooks import Scratch
from covist.families.projected import ProjectedTowerFamily, TowerOutput
from covist.families.reads import Placing, RecordedReads, of_entries
from covist.grid import Grid
from covist.report.pixels import lay_out, patches_of_tiles

ClassTokenRecord = tuple[EncoderLayer, Tensor]
"""Queries and keys of an encoder layer, and its output at the class token [tiles, v]."""


class ClipTowerFamily(ProjectedTowerFamily[ClassTokenRecord]):
    """A family whose encoder is a CLIP vision tower and whose projector reads one of its hidden states."""

    tower_types = ("clip_vision_model",)
    select_strategy = "default"
    has_class = True
    encoder_signal = "attention of the class token"

    @property
    def encoder_layers(self) -> Sequence[Any]:
        return self.base.vision_tower.encoder.layers

    def tap(self, layer: Any) -> _LayerTap:
        return _LayerTap(layer)

    def watched_layers(self, requests: Sequence[EncoderRequest]) -> list[int]:
        count = len(self.encoder_layers)
        numbers = (depth for depth in requests if not isinstance(depth, EncoderRead))
        depths = (int(depth * count) if isinstance(depth, float) else depth for depth in numbers)
        return list(dict.fromkeys(range(count)[index] for index in (*self.feature_layers, *depths)))

    def tower_signals(self, output: TowerOutput[ClassTokenRecord], tiles: slice, pack: Tensor) -> dict[str, Any]:
        """The `ImageSignals` fields that come from the tower, for the tiles of one image, ordered by `pack`."""
        layers = {
            index: EncoderLayer(layer.class_query[tiles], layer.class_key[tiles], layer.keys[tiles], layer.heads)
            for index, (layer, _) in output.captured.items()
        }
        feeding = layers[self.feature_layers[-1]]
        features = output.features[tiles]
        tower = self.base.vision_tower
        requested = of_entries(output.requested, tiles)
        # both number the tokens of a single tile row by row
        is_whole = features.shape[0] == 1 and len(pack) == features.shape[1]

        def packed(per_patch: Tensor) -> Tensor:
            return per_patch[0] if is_whole else per_patch.flatten(0, 1)[pack]

        classes = [output.captured[index][1][tiles] for index in self.feature_layers]
        placing = Placing(
            query_patches=lambda: [torch.arange(1 + features.shape[1], device=features.device)],
            masses=lambda per_patch: per_patch.flatten()[pack],
            means=packed,
            states=packed,
            class_tokens=1,
        )
        return {
            "pack": pack,
            "read_attention": feeding.attention,
            "read_keys": lambda: packed(feeding.keys),
            "read_hidden": lambda: packed(features),
            "project": self.base.multi_modal_projector,
            "class_features": classes[0] if len(classes) == 1 else torch.cat(classes, dim=-1),
            # if several layers feed the projector, their features lie side by side
            "text_space": lambda hidden: tower.post_layernorm(hidden[..., -tower.config.hidden_size :]),
            "feeding": feeding,
            "layers": layers,
            "requested": placing.reads(requested),
            "tower": self._walkable(requested),
        }

    def _walkable(self, requested: RecordedReads) -> Tower | None:
        """The tower with its input for the tiles of an image, if a method requested it."""
        entry = next((raw[0] for read, raw in requested.items() if read.what == "entry"), None)
        if entry is None:
            return None
        layers = self.encoder_layers
        return Tower(entry, lambda number, states: self.run_layer(layers[number], states), tuple(self.feature_layers))

    def run_layer(self, layer: Any, states: Tensor) -> LayerRun:
        """Run one layer on some tokens [n, v]; calling `forward` skips the hooks on its projections."""
        attention = layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return run_layer(
            layer,
            states,
            project=lambda normed: [projection.forward(normed) for projection in projections],
            mix=attention.out_proj,
            head_width=attention.head_dim,
        )


class _LayerTap:
    """Keeps the class query, keys and class output of one encoder layer until they are taken."""

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

    def take(self) -> ClassTokenRecord:
        left = self._scratch.take()
        # The class rows are copied so that they do not keep the full projection outputs alive.
        query, output = left["query"][:, 0].clone(), left["output"][:, 0].clone()
        keys = left["keys"]
        return EncoderLayer(query, keys[:, 0], keys[:, 1:], self._heads), output


@torch.no_grad()
def run_layer(
    layer: Any,
    states: Tensor,
    project: Callable[[Tensor], Iterable[Tensor]],
    mix: Callable[[Tensor], Tensor],
    head_width: int,
) -> LayerRun:
    """Run one layer on some tokens [n, v], written out to return its attention and to bypass hooks that expect images.

    project: normed states to queries, keys and values, [n, heads x width] each; mix: the attention's output projection.
    """
    queries, keys, values = (
        part.unflatten(-1, (-1, head_width)).transpose(0, 1) for part in project(layer.layer_norm1(states))
    )  # [heads, n, w]
    weights = (queries @ keys.transpose(1, 2) * head_width**-0.5).softmax(-1, dtype=torch.float32)
    states = states + mix((weights.to(values.dtype) @ values).transpose(0, 1).flatten(1))
    return LayerRun(states + layer.mlp(layer.layer_norm2(states)), weights[:, 0], values)


def read_tiles(tiles: Tensor, side: int, pack: Tensor, grid: Grid) -> list[Tensor]:
    """The image of each view, from the tiles [tiles, 3, h, w] of an image, ordered by `pack`."""
    return lay_out(patches_of_tiles(tiles.detach().cpu(), side)[pack.cpu()], grid)


def patches_per_side(model: Any) -> int:
    vision = model.config.vision_config
    return vision.image_size // vision.patch_size
