"""Granite 4 Vision: images enter at several decoder layers, and their places in the prompt are empty until then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covist.families.folding import ModuleCall
from covist.families.generic import Generic, pieces_of
from covist.families.registry import register_family


@register_family
class Granite4Vision(Generic):
    name = "granite4-vision"
    model_classes = ("Granite4VisionForConditionalGeneration",)
    companion_arguments = ("vision_mask", "deepstack_features")

    def spans(self, output: Any, calls: list[ModuleCall]) -> list[Tensor]:
        """What enters first stands for an image."""
        _, features = min(output.deepstack_features, key=lambda level: level[0])
        return [piece.detach() for piece in pieces_of(features, self.decoder.config.hidden_size)]

    def placed(self, embeddings: Tensor) -> Tensor:
        return torch.zeros_like(embeddings)

    def companions(self, output: Any) -> dict[int, Tensor]:
        width = self.decoder.config.hidden_size
        return {
            layer: torch.cat(list(pieces_of(features, width))).detach() for layer, features in output.deepstack_features
        }
