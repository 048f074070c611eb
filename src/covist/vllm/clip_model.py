"""What the model classes with a CLIP tower have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.model_executor.models.utils import WeightsMapper

from covist.vllm.model import CompressedModel

POST_LAYERNORM = ".post_layernorm."


class ClipTowerModel(CompressedModel):
    """A model whose images come as one batch of tiles each."""

    named_as_saved: ClassVar = WeightsMapper(
        # transformers 5.22 and later leave a part of the tower's name out when they save it
        orig_to_new_regex={re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)"): "vision_tower.vision_model."}
    )

    def image_tokens(self, kwargs: dict[str, Any]) -> list[int]:
        vision = self.config.vision_config
        patches = (vision.image_size // vision.patch_size) ** 2
        return [pixels[..., 0, 0, 0].numel() * patches for pixels in kwargs["pixel_values"]]  # of each tile

    def part_of(self, kwargs: dict[str, Any], part: slice) -> dict[str, Any]:
        return {name: values[part] for name, values in kwargs.items()}

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return super().load_weights(self._keeping_last_norm(weights))

    def _keeping_last_norm(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        """Weights on their way to vLLM, which leaves the tower's last norm out; CLIP's text space needs it."""
        vision = self.config.vision_config
        norm = nn.LayerNorm(vision.hidden_size, eps=vision.layer_norm_eps)
        for name, tensor in weights:
            if POST_LAYERNORM in name:
                getattr(norm, name.rpartition(".")[2]).data.copy_(tensor)
                self._family.post_layernorm = norm
            yield name, tensor
