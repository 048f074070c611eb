"""A configuration that transformers does not have."""

from transformers import CONFIG_MAPPING, PreTrainedConfig


class OwlVisionConfig(PreTrainedConfig):
    model_type = "owl_vision"
    hidden_size: int = 32
    patch_size: int = 4
    image_size: int = 32
    num_attention_heads: int = 2
    num_hidden_layers: int = 2


class OwlConfig(PreTrainedConfig):
    model_type = "owl"
    sub_configs = {"vision_config": OwlVisionConfig}
    image_token_id: int = 90

    def __init__(self, vision_config=None, text_config=None, **options):
        self.vision_config = vision_config or OwlVisionConfig()
        if isinstance(self.vision_config, dict):
            self.vision_config = OwlVisionConfig(**self.vision_config)
        self.text_config = text_config
        if isinstance(text_config, dict):
            self.text_config = CONFIG_MAPPING[text_config.pop("model_type")](**text_config)
        super().__init__(**options)
