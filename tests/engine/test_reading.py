"""What can be read of text models of many kinds: reading never decides whether a model runs."""

import copy
import threading

import pytest
import torch
import transformers
from support.llava import ask
from support.text_models import (
    CHUNKED,
    EXPERTS,
    FEW_EXPERTS,
    LATENT,
    LINEAR,
    MAMBA,
    PER_LAYER,
    READABLE,
    SIZES,
    build,
    readable,
    text_config,
)
from torch import nn
from transformers import AutoModel, DynamicCache

from covist.contract.reading import check_method, readable_schedule
from covist.contract.text_config import geometry_of
from covist.engine.decoder import FrozenDecoder
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable
from covist.methods.create import create_method

RANGE = (0.6, 1.4)
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window": 8}
GROUPED, WIDE = {"num_key_value_heads": 2, "head_dim": 8}, {"head_dim": 16}

ALL, NONE = list(range(8)), []
ODD = [1, 3, 5, 7]
# name: (configuration, options, layers that are read, layers with a distance factor, numbers in the cache of layer 1)
MODELS = {
    "gemma3: two tables": ("Gemma3TextConfig", GROUPED | ALTERNATING, ALL, ALL, 32),
    "gemma4: heads of two widths": (
        "Gemma4TextConfig",
        GROUPED | ALTERNATING | PER_LAYER | {"num_kv_shared_layers": 0},
        ALL,
        ALL,
        64,
    ),
    "gemma4: shared keys": (
        "Gemma4TextConfig",
        GROUPED | ALTERNATING | PER_LAYER | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2},
        ALL[:6],
        ALL,
        64,
    ),
    "cohere2: full layers without rotary": ("Cohere2Config", GROUPED, ALL, [0, 1, 2, 4, 5, 6], 32),
    "llama4: complex angles, norm after rotation": (
        "Llama4TextConfig",
        GROUPED | CHUNKED,
        ALL,
        [0, 1, 2, 4, 5, 6],
        32,
    ),
    "mistral: sliding window": ("MistralConfig", GROUPED | {"sliding_window": 8}, ALL, ALL, 32),
    "qwen3.5: linear attention": ("Qwen3_5TextConfig", GROUPED | LINEAR | WIDE, [3, 7], [3, 7], 0),
    "qwen3-next: linear attention": (
        "Qwen3NextConfig",
        GROUPED | LINEAR | WIDE | EXPERTS | {"shared_expert_intermediate_size": 16},
        [3, 7],
        [3, 7],
        0,
    ),
    "lfm2: convolutions": ("Lfm2Config", GROUPED | {"layer_types": ["conv", "full_attention"] * 4}, ODD, ODD, 32),
    "nemotron-h: mamba, no rotary": (
        "NemotronHConfig",
        GROUPED | MAMBA | {"layers_block_type": ["mamba", "attention"] * 4},
        ODD,
        NONE,
        32,
    ),
    "mamba2": (
        "Mamba2Config",
        {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8},
        NONE,
        NONE,
        0,
    ),
    "deepseek-v3: latent keys": ("DeepseekV3Config", LATENT, NONE, ALL, 24),
    "phi3: fused projections": ("Phi3Config", {"num_key_value_heads": 2}, NONE, ALL, 32),
    "persimmon: fused projections": ("PersimmonConfig", {}, NONE, ALL, 64),
    "gpt-neox: fused projections": ("GPTNeoXConfig", {}, NONE, ALL, 64),
    "gemma2: capped logits": ("Gemma2Config", GROUPED, NONE, ALL, 32),
    "gpt-oss: sinks": ("GptOssConfig", GROUPED | FEW_EXPERTS, NONE, ALL, 32),
    "diffllama": ("DiffLlamaConfig", {"num_key_value_heads": 2}, NONE, ALL, 32),
}


def text_model(name):
    config, options, *_ = MODELS[name]
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": 64, "pad_token_id": 0}
    model = AutoModel.from_config(getattr(transformers, config)(**{**sizes, **options}))
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(std=0.2)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_every_text_model_has_a_decoder_that_says_what_it_reads(name):
    _, _, read, turning, cached = MODELS[name]
    decoder = FrozenDecoder(text_model(name))
    assert [layer for layer in range(8) if decoder.reads(layer)] == read
    assert sorted(decoder.unread) == [layer for layer in range(8) if layer not in read]
    assert all(reason and "\n" not in reason for reason in decoder.unread.values())
    assert [layer for layer, table in enumerate(decoder.distances) if table is not None] == turning
    assert [layer for layer in range(8) if decoder.frequencies(layer) is not None] == turning
    gains = decoder.head_gains(RANGE)
    assert gains.shape == (8, decoder.heads)
    recipes = [layer for layer in turning if decoder._state[0].layers[layer].reader is not None]
    others = [layer for layer in range(8) if layer not in recipes]
    assert torch.equal(gains[others], torch.ones(len(others), decoder.heads))
    assert decoder.kv_numbers(1) == cached and decoder.kv_bytes([1.0] * 8) >= 0
    assert decoder.flops([1.0] * 8) > 0 and decoder.head_width > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_says_what_the_cache_of_every_layer_holds(name):
    """After a prompt of 20 tokens, which is longer than the windows."""
    model = text_model(name)
    geometry = geometry_of(model.config)
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.arange(20)[None], past_key_values=cache, use_cache=True)
    held = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    numbers = [sum(part.numel() for part in pair if part is not None) for pair in held]
    expected = [layer.kept(20) * layer.cached for layer in geometry.pattern]
    assert numbers + [0] * (8 - len(numbers)) == expected


@pytest.mark.parametrize("name", [name for name, (_, _, read, *_) in MODELS.items() if read])
def test_reads_are_what_the_attention_function_receives(name):
    """The model runs with eager attention and a watched attention function; unread layers are not compared."""
    module = text_model(name)
    decoder, seen, inputs = FrozenDecoder(module), {}, {}
    read = [layer for layer in range(8) if decoder.reads(layer)]
    embeddings = module.get_input_embeddings()(torch.arange(20, 27))
    implementation = "watched-by-reading"

    def watch(attention, query, key, value, mask, **options):
        seen[attention.layer_idx] = (query[0], key[0], value[0], options["scaling"])
        group = query.shape[1] // key.shape[1]
        mixed = (query @ key.repeat_interleave(group, 1).mT * options["scaling"]).softmax(-1)
        return (mixed @ value.repeat_interleave(group, 1)).transpose(1, 2), None

    transformers.AttentionInterface.register(implementation, watch)
    for index, layer in enumerate(module.layers):
        layer.register_forward_pre_hook(
            lambda layer, args, kwargs, index=index: inputs.update({index: (args or (kwargs["hidden_states"],))[0][0]}),
            with_kwargs=True,
        )
    module.set_attn_implementation(implementation)
    module(inputs_embeds=embeddings[None], position_ids=torch.arange(7)[None], use_cache=False)
    torch.testing.assert_close(decoder.first_input(embeddings), inputs[0])
    for layer in read:
        rotary = tuple(part[0] for part in decoder.rotary(embeddings[None], torch.arange(7)[None], layer))
        ours = decoder.queries(layer, inputs[layer], rotary), decoder.keys(layer, inputs[layer], rotary)
        for found, expected in zip((*ours, decoder.values(layer, inputs[layer])), seen[layer], strict=False):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert decoder.scale(layer) == pytest.approx(seen[layer][3])


def test_layers_with_equal_frequencies_share_a_table():
    tables = FrozenDecoder(text_model("gemma3: two tables")).distances
    assert len(set(tables)) == 2 and len(set(tables[::2])) == 1 and len(set(tables[1::2])) == 1
    module = text_model("gemma3: two tables")
    own = {name: buffer.double() for name, buffer in module.rotary_emb.named_buffers()}
    assert torch.equal(tables[0].inverse_frequencies, own["sliding_attention_inv_freq"])
    assert torch.equal(tables[1].inverse_frequencies, own["full_attention_inv_freq"])


def test_angles_that_no_buffer_explains_are_measured():
    module = copy.deepcopy(readable("llama").model.language_model)
    forward = type(module.rotary_emb).forward

    def half_speed(self, x, position_ids):
        return forward(self, x, position_ids / 2)

    module.rotary_emb.__class__ = type("HalfSpeed", (type(module.rotary_emb),), {"forward": half_speed})
    decoder = FrozenDecoder(module)
    torch.testing.assert_close(decoder.frequencies(0), module.rotary_emb.inv_freq / 2)
    hidden, positions = torch.zeros(1, 7, decoder.hidden), torch.arange(7)[None]
    torch.testing.assert_close(decoder.rotary(hidden, positions), module.rotary_emb(hidden, positions))


# -- quantised and changed weights -------------------------------------------------------------------------------------


class Buffered(nn.Module):
    """A projection like those of GPTQ and AWQ: integers and scales in buffers, no parameter."""

    def __init__(self, linear, dtype=torch.float32):
        super().__init__()
        scale = linear.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("packed", (linear.weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.to(dtype))

    def forward(self, states):
        if states.dtype != self.scale.dtype:
            raise RuntimeError(f"expected {self.scale.dtype}, got {states.dtype}")
        return states @ (self.packed.to(states.dtype) * self.scale).T


def quantised(model, make):
    model = copy.deepcopy(model)
    for layer in model.model.language_model.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(layer.self_attn, name, make(getattr(layer.self_attn, name)))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projections_with_buffers_only_are_probed_in_the_layers_dtype(compress, dtype):
    plain = copy.deepcopy(readable("llama")).to(dtype)
    model = quantised(plain, lambda linear: Buffered(linear, dtype))
    expected = FrozenDecoder(plain.model.language_model).head_gains(RANGE)
    decoder = FrozenDecoder(model.model.language_model)
    torch.testing.assert_close(decoder.head_gains(RANGE), expected, atol=0.03, rtol=0)
    assert not decoder.unread and not decoder.weights_changed()
    model.model.language_model.layers[1].self_attn.q_proj.scale.mul_(2)
    assert decoder.weights_changed()
    if dtype == torch.float32:
        handle = compress(model, budget=24)
        model(**ask("USER: <image> what color ? ASSISTANT:"))
        assert handle.report.mean_tokens == 24


def test_projections_that_cannot_be_probed_leave_gains_of_one():
    class OnlyBatches(Buffered):
        def forward(self, states):
            if states.ndim < 3:
                raise NotImplementedError("this kernel takes batches only")
            return super().forward(states)

    decoder = FrozenDecoder(quantised(readable("llama"), OnlyBatches).model.language_model)
    assert torch.equal(decoder.head_gains(RANGE), torch.ones(8, decoder.heads))
    assert "this kernel takes batches only" in decoder.unread[0] and decoder.reads(0)


class Subclass(torch.Tensor):
    """A weight like torchao's: inside a plain linear layer, and most functions do not know it."""

    @staticmethod
    def __new__(cls, plain):
        return torch.Tensor._make_wrapper_subclass(cls, plain.shape, dtype=plain.dtype)

    def __init__(self, plain):
        self.plain = plain

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        views, products = ("aten.t.default", "aten.detach.default"), ("aten.mm.default", "aten.addmm.default")
        if str(function) not in (*views, *products):
            raise NotImplementedError(f"{function} is not implemented for this weight")
        made = function(*(arg.plain if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))
        return cls(made) if str(function) in views else made


def test_weights_that_are_tensor_subclasses_are_probed():
    def subclass(linear):
        made = nn.Linear(linear.in_features, linear.out_features, bias=False)
        made.weight = nn.Parameter(Subclass(linear.weight.detach()), requires_grad=False)
        return made

    decoder = FrozenDecoder(quantised(readable("llama"), subclass).model.language_model)
    expected = FrozenDecoder(readable("llama").model.language_model).head_gains(RANGE)
    torch.testing.assert_close(decoder.head_gains(RANGE), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", ["q_norm", "k_norm"])
def test_changed_norms_of_queries_and_keys_are_noticed(compress, norm):
    model = copy.deepcopy(readable("qwen3: norm per head"))
    handle = compress(model, budget=24)
    before = handle.settings.decoder.head_gains(RANGE)
    for layer in model.model.language_model.layers[::2]:
        getattr(layer.self_attn, norm).weight[::2] *= 9
    assert handle.settings.decoder.weights_changed()
    model(**ask("USER: <image> what color ? ASSISTANT:"))
    now = handle.settings.decoder.head_gains(RANGE)
    assert (now - before).abs().max() > 0.1
    assert torch.equal(now, FrozenDecoder(model.model.language_model).head_gains(RANGE))


# -- frequencies that change -------------------------------------------------------------------------------------------


def dynamic(longest=64):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config, options = READABLE["llama"]
    return build(text_config(config, {**options, "max_position_embeddings": longest, "rope_parameters": rope}))


def test_distances_follow_dynamic_rope(compress):
    model = dynamic()
    handle = compress(model, budget=24)
    decoder, table = handle.settings.decoder, handle.settings.decoder.distances[0]
    before = table.inverse_frequencies
    inputs = ask("USER: <image> what color ? ASSISTANT:")
    assert inputs["input_ids"].shape[1] > 64
    model(**inputs)
    now = model.model.language_model.rotary_emb.inv_freq
    assert not torch.equal(now.double(), before)
    assert torch.equal(decoder.distances[0].inverse_frequencies, now.double())
    assert torch.equal(handle.settings.rule.distances[0].inverse_frequencies, now.double())
    assert not decoder.rotation_changed()


def test_reading_leaves_dynamic_frequencies_as_they_are():
    module = dynamic().model.language_model
    module(inputs_embeds=torch.zeros(1, 200, 32), use_cache=False)
    grown = module.rotary_emb.inv_freq.clone()
    decoder = FrozenDecoder(module)
    assert torch.equal(module.rotary_emb.inv_freq, grown) and torch.equal(decoder.frequencies(0), grown)
    module(inputs_embeds=torch.zeros(1, 400, 32), use_cache=False)
    assert decoder.rotation_changed() and torch.equal(decoder.frequencies(0), module.rotary_emb.inv_freq)
    assert not decoder.rotation_changed()


def test_a_replaced_buffer_with_the_same_values_keeps_the_tables():
    module = copy.deepcopy(readable("llama").model.language_model)
    decoder = FrozenDecoder(module)
    tables = decoder.distances
    module.rotary_emb.register_buffer("inv_freq", module.rotary_emb.inv_freq.clone(), persistent=False)
    assert not decoder.rotation_changed() and decoder.distances == tables
    module.rotary_emb.inv_freq.mul_(0.5)
    assert decoder.rotation_changed() and decoder.distances != tables


def test_a_table_grows_under_many_threads():
    theta = torch.tensor([1.0, 0.1, 0.01])
    wrong = []
    for _ in range(20):
        table = DistanceTable(theta, size=4)

        def look(distance, table=table):
            for far in range(distance, distance + 40):
                found = table.log_factor(torch.tensor([far]), torch.tensor([0]))
                expected = torch.log(2 - torch.cos(far * theta.double()).mean())
                if abs(float(found) - float(expected)) > 1e-6:
                    wrong.append(far)

        threads = [threading.Thread(target=look, args=(distance,)) for distance in (0, 500, 60, 3000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


# -- methods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method, what",
    [("fastv", "the attention of layer 0"), ("covist-pro", "the attention of layer 4"), ("dart", "keys or values")],
)
def test_a_method_that_reads_what_is_not_there_is_refused_by_name(method, what):
    decoder = FrozenDecoder(text_model("phi3: fused projections"))
    with pytest.raises(CovistError) as refusal:
        check_method(create_method(method), decoder)
    message = str(refusal.value)
    assert (
        message.startswith(f"{method} reads {what}") and "cannot be read in Phi3Model: Phi3Attention has no" in message
    )
    assert "\n" not in message and "choose a method that acts before the decoder" in message


@pytest.mark.parametrize(
    "method", ["covist-fixed", "covist-max", "divprune+csc+sca", "restore-divprune", "v2drop", "tome"]
)
@pytest.mark.parametrize("name", ["phi3: fused projections", "mamba2", "deepseek-v3: latent keys"])
def test_other_methods_run_without_a_readable_layer(method, name):
    check_method(create_method(method), FrozenDecoder(text_model(name)))


@pytest.mark.parametrize("method", ["covist-pro", "fastv", "pyramiddrop", "sparsevlm", "ivc-prune", "fastv+csc+sca"])
def test_reductions_move_to_layers_that_can_be_read(method):
    decoder, chosen = FrozenDecoder(text_model("qwen3.5: linear attention")), create_method(method)
    schedule = readable_schedule(chosen, decoder, budget=64, tokens=576)
    inside = [depth for depth, _ in schedule.stages[1:]]
    assert inside and all(decoder.reads(chosen.observed_layer(depth)) for depth in inside)
    plain = chosen.schedule(8, 64, 576)
    assert schedule.cached_mean == pytest.approx(plain.cached_mean, rel=0.05) or min(schedule.tokens_per_layer) == 1


def test_schedules_stay_as_they_are_if_everything_is_read():
    decoder = FrozenDecoder(readable("llama").model.language_model)
    for method in ("covist-pro", "fastv", "covist-fixed", "tops", "fitprune"):
        chosen = create_method(method)
        assert readable_schedule(chosen, decoder, 64, 576) == chosen.schedule(8, 64, 576)
