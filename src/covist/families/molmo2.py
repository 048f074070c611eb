"""Molmo2: image features are added to the embedding of their placeholder instead of taking its place."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.families.generic import Generic
from covist.families.registry import register_family


@register_family
class Molmo2(Generic):
    name = "molmo2"
    model_classes = ("Molmo2ForConditionalGeneration",)

    def placed(self, embeddings: Tensor) -> Tensor:
        token = torch.tensor(self.model.config.image_patch_id, device=embeddings.device)
        return self.base.get_input_embeddings()(token).detach().to(embeddings) + embeddings
