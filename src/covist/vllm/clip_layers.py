"""The parts of a CLIP tower that vLLM does not build, but methods read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import MMEncoderAttention
from vllm.model_executor.models.clip import CLIPEncoderLayer, CLIPVisionTransformer
from vllm.model_executor.models.utils import AutoWeightsLoader

TOWER_LAYER = re.compile(r"^(?:model\.)?vision_tower\.(?:vision_model\.)?encoder\.layers\.(\d+)\.")
POST_LAYERNORM = ".post_layernorm."
Weights = Iterable[tuple[str, Tensor]]


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


def attach_further_layers(model: Any, family: Any, requests: Iterable[Any], vllm_config: VllmConfig) -> None:
    """Build the layers that a method reads after those that vLLM builds."""
    layers = model.vision_tower.vision_model.encoder.layers
    last = max(family.depths(model.config, requests), default=0)
    model.further_layers = FurtherLayers(vllm_config, range(len(layers), last + 1))
    layers[-1].register_forward_hook(model.further_layers.run_after)


def with_all_of_the_tower(model: Any, family: Any, weights: Weights) -> Weights:
    """Redirect weights that vLLM would drop: those of further layers and of the tower's last norm."""
    vision = model.config.vision_config
    norm = nn.LayerNorm(vision.hidden_size, eps=vision.layer_norm_eps)
    for name, tensor in weights:
        layer = TOWER_LAYER.match(name)
        if layer is not None and layer[1] in model.further_layers.layers:
            name = f"further_layers.layers.{name[layer.start(1) :]}"
        elif POST_LAYERNORM in name:
            getattr(norm, name.rpartition(".")[2]).data.copy_(tensor)
            family.post_layernorm = norm
        yield name, tensor
