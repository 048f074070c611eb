"""A vision tower of convolutions in the place of timm's, which is not installed for the tests."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nVisionConfig


class ConvolutionsConfig(Gemma3nVisionConfig):
    """Gemma 3n accepts only its own configuration of a tower."""

    model_type = "convolutions_of_a_test"
    image_size: int = 32


class Convolutions(PreTrainedModel):
    """Features like those of timm's towers: [images, channels, height, width]."""

    config_class = ConvolutionsConfig

    def __init__(self, config: Any):
        super().__init__(config)
        self.stem = nn.Conv2d(3, config.hidden_size, 4, stride=4)
        self.stage = nn.Conv2d(config.hidden_size, config.hidden_size, 2, stride=2)
        self.post_init()

    def forward(self, pixel_values: Tensor, **options: Any) -> BaseModelOutputWithPooling:
        return BaseModelOutputWithPooling(last_hidden_state=self.stage(self.stem(pixel_values).relu()))


AutoModel.register(ConvolutionsConfig, Convolutions)
