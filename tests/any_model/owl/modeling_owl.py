"""A vision-language model that transformers does not have: its own tower and projector, and a text model of Qwen3."""

from torch import nn
from transformers import AutoModel, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_owl import OwlConfig


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    weights = (query @ key.transpose(2, 3) * scaling).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


class OwlAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.heads, self.is_causal = config, config.num_attention_heads, False
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden):
        parts = self.qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        seen, _ = attend(self, *parts, None, scaling=parts.shape[-1] ** -0.5, dropout=0.0)
        return self.out(seen.flatten(2))


class OwlLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(config.hidden_size), OwlAttention(config)

    def forward(self, hidden):
        return hidden + self.attention(self.norm(hidden))


class OwlTower(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Conv2d(3, config.hidden_size, config.patch_size, stride=config.patch_size)
        self.layers = nn.ModuleList(OwlLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, pixels):
        hidden = self.embed(pixels).flatten(2).transpose(1, 2)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class OwlPreTrainedModel(PreTrainedModel):
    config_class = OwlConfig
    _supports_sdpa = True


class OwlModel(OwlPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.tower = OwlTower(config.vision_config)
        self.projector = nn.Linear(4 * config.vision_config.hidden_size, config.text_config.hidden_size)
        self.language_model = AutoModel.from_config(config.text_config)
        self.post_init()

    def get_input_embeddings(self):
        return self.language_model.get_input_embeddings()

    def get_image_features(self, pixel_values, **kwargs):
        hidden = self.tower(pixel_values)
        side = int(hidden.shape[1] ** 0.5)
        square = hidden.unflatten(1, (side // 2, 2, side // 2, 2)).permute(0, 1, 3, 2, 4, 5)
        features = self.projector(square.flatten(1, 2).flatten(2, 4))
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=features)

    def forward(self, input_ids=None, pixel_values=None, inputs_embeds=None, **kwargs):
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            features = self.get_image_features(pixel_values).pooler_output
            there = (input_ids == self.config.image_token_id)[..., None].expand_as(inputs_embeds)
            inputs_embeds = inputs_embeds.masked_scatter(there, features.to(inputs_embeds))
        return self.language_model(inputs_embeds=inputs_embeds, **kwargs)


class OwlForConditionalGeneration(OwlPreTrainedModel, GenerationMixin):
    def __init__(self, config):
        super().__init__(config)
        self.model = OwlModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    def get_decoder(self):
        return self.model.language_model

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        pixel_values=None,
        use_cache=None,
        **kwargs,
    ):
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            pixel_values=pixel_values,
            use_cache=use_cache,
        )
        logits = self.lm_head(output.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)
