"""What a recipe for random-weight models says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.plan import Geometry

VOCABULARY, FIRST_SPECIAL = 1024, 1000
"""Of a model with random weights: ids from FIRST_SPECIAL on are placeholders, ids below it are text."""

RandomImage = tuple[list[int], dict[str, Tensor]]
"""The prompt tokens of an image or video, and the model's other arguments for it."""


class Recipe(ABC):
    """How to build models of a family's or a model type's published sizes, and an input for them."""

    clip_text: ClassVar[bool] = False
    """Whether the model gets a CLIP text tower."""
    shallow: ClassVar[Mapping[str, Any]] = {"num_hidden_layers": 1}
    """Fields of the vision configuration that reduce the tower to the depth that the signals need."""

    @abstractmethod
    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        """Fields of the vision configuration, its widths times `scale`; depth and patches stay."""

    @abstractmethod
    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        """The configuration, given the fields of its two halves; placeholders have ids from FIRST_SPECIAL on."""

    @abstractmethod
    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        """A random image or video."""

    def tokenizer(self) -> Any | None:
        """The tokenizer for prompts; None if their text is not read."""
        return None


def narrowed(count: int, scale: float, multiple: int = 1) -> int:
    """A number of heads times `scale`, at least one, divisible by `multiple`."""
    return max(1, round(count * scale / multiple)) * multiple


def layer_types(geometry: Geometry, text: Mapping[str, Any]) -> list[str]:
    """transformers' names for the kinds of a decoder's layers."""
    return [f"{layer.kind}_attention" for layer in geometry.kinds(text["num_hidden_layers"])]


def siglip(scale: float, layers: int, side: int) -> dict[str, Any]:
    """SigLIP so400m/14."""
    heads = narrowed(16, scale)
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": 72 * heads,
        "intermediate_size": round(4304 * scale),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "image_size": side,
        "patch_size": 14,
        "vision_use_head": False,
    }
