"""The vision tower for methods that read it: transformers' own, read as everywhere in covist.

vLLM's tower shows only the embeddings that it makes, so transformers' takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRequest
from covist.contract.family import Family
from covist.contract.signals import ImageSignals
from covist.errors import CovistError
from covist.families.registry import family_for, find_family
from covist.loading import Loading
from covist.request.encoders import load_encoder
from covist.vllm.settings import PREFIX

READ = ("llava-1.5", "llava-next", "qwen2-vl", "qwen2.5-vl", "qwen3-vl")
"""Families whose encoders receive in vLLM what they receive in transformers."""
TAKEN = ("pixel_values", "image_sizes", "image_grid_thw", "pixel_values_videos", "video_grid_thw")


def family_read(config: Any, architecture: str) -> type[Family] | None:
    """The family that reads the vision tower of a model, if one does."""
    try:
        _, family = find_family([architecture.removeprefix(PREFIX)], config)
    except CovistError:
        return None
    return family if family.name in READ else None


class ReadTower:
    """The encoder of a checkpoint, from images to embeddings, which keeps what methods read of it."""

    def __init__(self, vllm_config: Any, requests: Sequence[EncoderRequest]):
        given, device = vllm_config.model_config, vllm_config.device_config.device
        random = vllm_config.load_config.load_format == "dummy"
        with torch.device("cpu"):
            model = load_encoder(given.model, Loading(revision=given.revision), given.dtype, random)
        self.family = family_for(model.to(device))
        self._encoded: list[ImageSignals] = []
        self.family.capture(self._encoded.extend, requests)

    def encode(self, modality: str, arguments: dict[str, Any]) -> list[ImageSignals]:
        """Signals of every image, or of every segment of every video."""
        pixels = arguments.get("pixel_values")
        if isinstance(pixels, (list, tuple)):  # images with different numbers of tiles
            arguments = arguments | {"pixel_values": torch.cat([*pixels])}
        self._encoded.clear()
        given = {name: arguments[name] for name in TAKEN if name in arguments}
        getattr(self.family.base, f"get_{modality}_features")(**given, return_dict=True)
        return [*self._encoded]


def embeddings_of(signals: Sequence[ImageSignals]) -> Tensor:
    """[n, d] of an image or of a video; features for later layers follow in the same rows, as in vLLM."""
    return torch.cat(
        [torch.cat([one.span, *(one.companions[layer] for layer in sorted(one.companions))], -1) for one in signals]
    )
