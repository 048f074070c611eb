"""The architecture: the embedded LLaVA with the text model of Qwen3.5, in which every third layer is full attention.

Everything but the linear layers starts from the embedded model, as hybrids are commonly made from trained decoders.
"""

import math

import torch
from transformers import LlavaForConditionalGeneration, Qwen3_5TextConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5GatedDeltaNet

from covist.tiny.model import TOKEN_IDS, Size, llava_config
from covist.tiny.text import VOCABULARY

INTERVAL = 3  # every third layer is full attention
STEPS = (1e-3, 0.1)  # how far the state decays per token before training, as in Mamba 2 and Gated DeltaNet


def hybrid_config(size: Size) -> Qwen3_5TextConfig:
    head = size.width // size.heads
    return Qwen3_5TextConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size.width,
        intermediate_size=size.decoder_mlp,
        num_hidden_layers=size.decoder_layers,
        full_attention_interval=INTERVAL,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=head,
        linear_num_key_heads=size.heads,
        linear_num_value_heads=size.heads,
        linear_key_head_dim=head,
        linear_value_head_dim=head,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
        tie_word_embeddings=False,
        **TOKEN_IDS,
    )


def remember_long(layer: Qwen3_5GatedDeltaNet) -> None:
    """Start with states that outlive an image; transformers' start forgets within a few tokens."""
    low, high = map(math.log, STEPS)
    steps = torch.empty_like(layer.dt_bias).uniform_(low, high).exp()
    layer.dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # softplus gives the steps back


def inherit_layer(layer: Qwen3_5DecoderLayer, trained: LlamaDecoderLayer) -> None:
    """Take over what both layers have; the gate of the attention's output starts at one half for all."""
    layer.mlp.load_state_dict(trained.mlp.state_dict())
    for name in ("input_layernorm", "post_attention_layernorm"):
        getattr(layer, name).weight.copy_(getattr(trained, name).weight - 1)  # Qwen3.5 adds the 1 again
    if layer.block_type == "full_attention":
        attention, source = layer.self_attn, trained.self_attn
        attention.k_proj.weight.copy_(source.k_proj.weight)
        attention.v_proj.weight.copy_(source.v_proj.weight)
        query, gate = attention.q_proj.weight.unflatten(0, (-1, 2, attention.head_dim)).unbind(1)
        query.copy_(source.q_proj.weight.view_as(query))
        gate.zero_()
        attention.o_proj.weight.copy_(2 * source.o_proj.weight)


@torch.no_grad()
def build_hybrid(embedded: LlavaForConditionalGeneration, size: Size, seed: int = 0) -> LlavaForConditionalGeneration:
    """The embedded model with another text model, whose linear layers are not trained yet."""
    torch.manual_seed(seed)
    config = llava_config(size)
    config.text_config = hybrid_config(size)
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(embedded.model.vision_tower.state_dict())
    model.model.multi_modal_projector.load_state_dict(embedded.model.multi_modal_projector.state_dict())
    model.lm_head.load_state_dict(embedded.lm_head.state_dict())
    decoder, trained = model.model.language_model, embedded.model.language_model
    decoder.embed_tokens.load_state_dict(trained.embed_tokens.state_dict())
    decoder.norm.weight.copy_(trained.norm.weight - 1)
    for layer, source in zip(decoder.layers, trained.layers, strict=True):
        inherit_layer(layer, source)
        if layer.block_type == "linear_attention":
            remember_long(layer.linear_attn)
    return model
