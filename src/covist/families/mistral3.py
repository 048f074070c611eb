"""Mistral 3 (Mistral Small 3.1 and later, Ministral 3): a Pixtral tower, whose patches a merger joins 2 x 2."""

from __future__ import annotations

from torch import Tensor

from covist.families.pixtral_tower import PixtralTowerFamily
from covist.families.registry import register_family


@register_family
class Mistral3(PixtralTowerFamily):
    name = "mistral3"
    model_classes = ("Mistral3ForConditionalGeneration",)

    @property
    def merge(self) -> int:
        return self.model.config.spatial_merge_size

    def project(self, features: Tensor) -> Tensor:
        """The projector norms and merges patches of images: the tokens become one image, a single row of them."""
        side, merge = self.base.vision_tower.patch_size, self.merge
        tokens = features.reshape(-1, merge, merge, features.shape[-1] // merge**2)  # [tokens, rows, columns, v]
        strip = tokens.transpose(0, 1).flatten(0, 2)  # patches row by row
        embeddings = self.base.multi_modal_projector(strip, [(merge * side, len(tokens) * merge * side)])
        return embeddings.view(*features.shape[:-1], -1)
