"""A decoder with fused projections says what the engine reads from the same weights in separate ones."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, Qwen2Config, Qwen2Model, Qwen3Config, Qwen3Model

from covist.engine.decoder import FrozenDecoder
from covist.errors import CovistError
from covist.vllm.decoder import ServedDecoder

RANGE = (0.6, 1.4)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 40,
}
SCALED = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}
MODELS = {
    "llama": lambda: LlamaModel(LlamaConfig(**SIZES)),
    "llama, scaled positions": lambda: LlamaModel(LlamaConfig(**SIZES, **SCALED)),
    "qwen2, biases": lambda: Qwen2Model(Qwen2Config(**SIZES)),
    "qwen3, norms over heads": lambda: Qwen3Model(Qwen3Config(**SIZES)),
}


@pytest.fixture(params=MODELS)
def model(request):
    made = MODELS[request.param]()
    for name, parameter in made.named_parameters():
        if name.endswith(("norm.weight", "bias")):  # ones and zeros would hide what reads them
            nn.init.uniform_(parameter, 0.5, 1.5)
    return made.eval()


class Fused(nn.Module):
    """A projection as vLLM has it: queries, keys and values in one, and a bias beside the output."""

    def __init__(self, attention):
        super().__init__()
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
        self.bias = None if parts[0].bias is None else nn.Parameter(torch.cat([part.bias for part in parts]))

    def forward(self, states):
        return nn.functional.linear(states, self.weight, self.bias), None


class Packed(Fused):
    """The same, stored in a way that nothing can be read from."""

    def __init__(self, attention):
        super().__init__(attention)
        self._unpacked = self.weight.detach()
        del self.weight
        self.scales = nn.Parameter(torch.ones(1))

    def forward(self, states):
        return nn.functional.linear(states, self._unpacked, self.bias), None


def served(model, projection=Fused) -> ServedDecoder:
    """The decoder as vLLM would build it, on a single rank."""
    config = model.config
    layers = [
        SimpleNamespace(
            input_layernorm=layer.input_layernorm,
            self_attn=SimpleNamespace(
                qkv_proj=projection(layer.self_attn),
                attn=None,
                total_num_heads=config.num_attention_heads,
                total_num_kv_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
                q_size=config.num_attention_heads * config.head_dim,
                kv_size=config.num_key_value_heads * config.head_dim,
                scaling=layer.self_attn.scaling,
                **{name: norm for name, norm in layer.self_attn.named_children() if name.endswith("_norm")},
            ),
        )
        for layer in model.layers
    ]
    return ServedDecoder(SimpleNamespace(layers=layers), model.rotary_emb, lambda own, heads: own)


def test_shape_and_frequencies_are_those_of_the_model(model):
    ours, engine = served(model), FrozenDecoder(model)
    for name in ("layers", "heads", "head_width", "hidden"):
        assert getattr(ours, name) == getattr(engine, name)
    assert torch.equal(ours.frequencies, engine.frequencies(0))
    assert ours.scale(0) == engine.scale(0) and ours.reads(0)


@pytest.mark.parametrize("projection", [Fused, Packed])
def test_gains_from_a_fused_weight_are_those_of_the_engine(model, projection):
    ours = served(model, projection)
    ours.read_weights()
    expected = FrozenDecoder(model).head_gains(RANGE)
    assert expected.min() == RANGE[0] and expected.max() == pytest.approx(RANGE[1])
    torch.testing.assert_close(ours.head_gains(RANGE), expected, atol=1e-5, rtol=0)


def test_before_the_weights_are_there_every_gain_is_one(model):
    assert torch.equal(served(model).head_gains(RANGE), torch.ones(3, 4))


@torch.no_grad()
def test_queries_and_keys_are_those_of_the_engine(model):
    ours, engine, hidden = served(model), FrozenDecoder(model), torch.randn(5, 32)
    for read in ("queries", "keys"):
        torch.testing.assert_close(getattr(ours, read)(1, hidden), getattr(engine, read)(1, hidden))


def test_a_layer_of_another_form_is_refused(model):
    odd = SimpleNamespace(layers=[SimpleNamespace(self_attn=SimpleNamespace(qkv_proj=None))])
    with pytest.raises(CovistError, match="layer 0 has no self_attn with attn, total_num_heads"):
        ServedDecoder(odd, model.rotary_emb, lambda own, heads: own)
