"""What the model classes with a CLIP tower share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import MMEncoderAttention
from vllm.model_executor.models.clip import CLIPEncoderLayer, CLIPVisionTransformer
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from covist.vllm.model import CompressedModel

TOWER_LAYER = re.compile(r"^(?:model\.)?vision_tower\.(?:vision_model\.)?encoder\.layers\.(\d+)\.")
POST_LAYERNORM = ".post_layernorm."


class FurtherLayers(nn.Module):
    """Encoder layers after the one that feeds the projector, at which vLLM's tower ends."""

    def __init__(self, vllm_config: VllmConfig, numbers: Iterable[int]):
        super().__init__()
        vision, options = vllm_config.model_config.hf_config.vision_config, {"attn_cls": MMEncoderAttention}
        self.layers = nn.ModuleDict(
            {
                str(number): CLIPEncoderLayer(
                    vision, vllm_config.quant_config, prefix=f"further_layers.layers.{number}", **options
                )
                for number in numbers
            }
        )

    def run_after(self, module: nn.Module, inputs: Any, hidden: Tensor) -> None:
        """A forward hook of the tower's last layer; taps on these layers use the results."""
        for layer in self.layers.values():
            hidden = layer(hidden)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights, mapper=CLIPVisionTransformer.hf_to_vllm_mapper)


class ClipTowerModel(CompressedModel):
    """A model in which each image is a batch of tiles."""

    named_as_saved: ClassVar = WeightsMapper(
        # transformers 5.22 and later omit a part of the tower's name when saving
        orig_to_new_regex={re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)"): "vision_tower.vision_model."}
    )
    vision_tower: Any

    def _bind_family(self, vllm_config: VllmConfig) -> Any:
        layers = self.vision_tower.vision_model.encoder.layers
        last = max(self.served_family.depths(self.config, self.serving.method.encoder_requests), default=0)
        self.further_layers = FurtherLayers(vllm_config, range(len(layers), last + 1))
        layers[-1].register_forward_hook(self.further_layers.run_after)
        return super()._bind_family(vllm_config)

    def image_tokens(self, kwargs: dict[str, Any]) -> list[int]:
        vision = self.config.vision_config
        patches = (vision.image_size // vision.patch_size) ** 2
        return [pixels[..., 0, 0, 0].numel() * patches for pixels in kwargs["pixel_values"]]  # of each tile

    def part_of(self, kwargs: dict[str, Any], part: slice) -> dict[str, Any]:
        return {name: values[part] for name, values in kwargs.items()}

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return super().load_weights(self._with_all_of_the_tower(weights))

    def _with_all_of_the_tower(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        """Redirect weights that vLLM would drop: those of further layers and of the tower's last norm."""
        vision = self.config.vision_config
        norm = nn.LayerNorm(vision.hidden_size, eps=vision.layer_norm_eps)
        for name, tensor in weights:
            layer = TOWER_LAYER.match(name)
            if layer is not None and layer[1] in self.further_layers.layers:
                name = f"further_layers.layers.{name[layer.start(1) :]}"
            elif POST_LAYERNORM in name:
                getattr(norm, name.rpartition(".")[2]).data.copy_(tensor)
                self._family.post_layernorm = norm
            yield name, tensor
