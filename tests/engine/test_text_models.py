"""Text models of many kinds under LLaVA: their attention is read as they compute it, or they are refused."""

import copy
import random
import threading

import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model
from support.llava import TOKENS, ask
from support.requests import assert_same, greedy
from support.slow_text_model import SlowTextModel, Watched
from support.text_models import READABLE, REFUSED, build, readable, text_config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention

from covist.contract.views import DecoderView
from covist.engine.capture import Capture
from covist.engine.decoder import FrozenDecoder
from covist.errors import CovistError

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
UNUSUAL = [name for name in READABLE if name.startswith(("phi", "glm", "smollm3", "olmo2", "qwen3-next"))]


@pytest.fixture(params=READABLE)
def text_model(request):
    return readable(request.param)


def embeddings_for(decoder, tokens=7, seed=1):
    width = decoder.config.hidden_size
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


def test_reads_are_what_the_attention_function_receives(text_model):
    module = text_model.model.language_model
    embeddings = embeddings_for(module)
    watched, decoder = Watched(module, embeddings), FrozenDecoder(module)
    torch.testing.assert_close(decoder.first_input(embeddings), watched.hidden[0])
    cos, sin = decoder.rotary(embeddings[None], torch.arange(len(embeddings))[None])
    for layer, hidden in enumerate(watched.hidden):
        rotary = (cos[0], sin[0])
        torch.testing.assert_close(decoder.queries(layer, hidden, rotary), watched.queries[layer], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(decoder.keys(layer, hidden, rotary), watched.keys[layer], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(decoder.values(layer, hidden), watched.values[layer], atol=1e-4, rtol=1e-4)
        assert decoder.scale(layer) == pytest.approx(watched.scale[layer])


def test_attention_of_a_view_is_the_models_own(text_model):
    module = text_model.model.language_model
    embeddings, depth = embeddings_for(module), 3  # where SmolLM3 has no rotary
    watched, decoder = Watched(module, embeddings), FrozenDecoder(module)
    cos, sin = decoder.rotary(embeddings[None], torch.arange(len(embeddings))[None])
    nothing = torch.empty(0)
    view = DecoderView(
        depth=depth,
        decoder=decoder,
        hidden=watched.hidden[depth],
        observed=watched.hidden[depth],
        observed_layer=depth,
        positions=torch.arange(len(embeddings)),
        rotary=(cos[0], sin[0]),
        visual=nothing,
        text=nothing,
        text_embeddings=nothing,
        instruction_rows=nothing,
        last_instruction_row=0,
        signals=None,
    )
    rows = torch.tensor([2, 6])
    keys = watched.keys[depth].repeat_interleave(decoder.heads // len(watched.keys[depth]), dim=0)
    logits = watched.queries[depth] @ keys.mT * watched.scale[depth]
    expected = logits.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)[:, rows]
    torch.testing.assert_close(view.attention(rows), expected, atol=1e-4, rtol=1e-4)


def test_compressed_answers_are_those_of_the_slow_reference(text_model, strategy, compress):
    inputs = ask(PROMPT)
    handle = compress(text_model, budget=24, strategy=strategy)
    output = greedy(text_model, inputs, 2)
    handle.remove()
    slow, length = SlowTextModel(text_model, pro=strategy == "pro"), inputs["input_ids"].shape[1]
    for step, logits in enumerate(output.logits):
        ids = output.sequences[0, : length + step].tolist()
        expected = slow.logits(ids, inputs["pixel_values"], list(handle.report.images))
        torch.testing.assert_close(logits[0], expected, atol=2e-4, rtol=2e-4)


def test_all_tokens_give_the_plain_model(text_model, strategy, compress):
    inputs = ask(PROMPT)
    plain = greedy(text_model, inputs, 3)
    compress(text_model, budget=TOKENS, strategy=strategy)
    assert_same(greedy(text_model, inputs, 3), plain, 1e-5)


@pytest.mark.parametrize("method", ["sparsevlm-plus", "dart", "restore-divprune"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_methods_that_read_the_decoder_run_on_unusual_text_models(compress, name, method):
    model = readable(name)
    handle = compress(model, budget=24, method=method, concentration=None)
    output = model(**ask(PROMPT))
    assert output.logits.isfinite().all() and handle.report.mean_tokens < TOKENS


@pytest.mark.parametrize("config, options, reason", REFUSED.values(), ids=REFUSED.keys())
def test_unsupported_text_models_are_refused_in_one_line(compress, config, options, reason):
    with pytest.raises(CovistError, match=reason) as refusal:
        compress(build(text_config(config, options)), budget=24)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 300


def test_layers_without_rotary_have_unit_gain_and_no_part_in_the_extrema():
    model = copy.deepcopy(readable("smollm3: layers without rotary"))
    decoder = FrozenDecoder(model.model.language_model)
    assert [layer for layer, table in enumerate(decoder.distances) if table is None] == [3, 7]
    before = decoder.head_gains((0.6, 1.4))
    assert torch.equal(before[[3, 7]], torch.ones(2, decoder.heads))
    with torch.no_grad():
        model.model.language_model.layers[3].self_attn.q_proj.weight[::2] *= 30
    assert torch.equal(FrozenDecoder(model.model.language_model).head_gains((0.6, 1.4)), before)


# -- the trial run -----------------------------------------------------------------------------------------------------


def odd_input(self, hidden_states, **options):
    return LlamaAttention.forward(self, hidden_states * 1.5, **options)


def odd_queries(self, hidden_states, position_embeddings, **options):
    cos, sin = position_embeddings
    return LlamaAttention.forward(self, hidden_states, (cos, -sin), **options)


def no_interface(self, hidden_states, **options):
    return self.o_proj(self.q_proj(hidden_states)), None


def failing(self, hidden_states, **options):
    raise KeyError("missing")


@pytest.mark.parametrize(
    "forward, reason",
    [
        (odd_input, "OddAttention does not read the layer's input after a norm"),
        (odd_queries, "OddAttention computes its queries, keys or values in a way that covist does not know"),
        (no_interface, "the attention of LlamaDecoderLayer does not go through transformers' attention interface"),
        (failing, "a trial run of LlamaDecoderLayer failed with KeyError: 'missing'"),
    ],
)
def test_an_attention_that_differs_from_every_recipe_is_not_read(compress, forward, reason):
    model = copy.deepcopy(readable("llama"))
    for layer in model.model.language_model.layers[1:3]:
        layer.self_attn.__class__ = type("OddAttention", (LlamaAttention,), {"forward": forward})
    decoder = FrozenDecoder(model.model.language_model)
    assert list(decoder.unread) == [1, 2] and all(reason in why for why in decoder.unread.values())
    assert [decoder.reads(layer) for layer in range(4)] == [True, False, False, True]
    tried = forward in (odd_input, odd_queries)  # then it shows that its queries depend on the angles
    assert [table is not None for table in decoder.distances[:4]] == [True, tried, tried, True]
    gains = decoder.head_gains((0.6, 1.4))
    assert torch.equal(gains[1:3], torch.ones(2, decoder.heads)) and gains.min() < 0.61 and gains.max() > 1.39
    with pytest.raises(CovistError, match="layer 1 of LlamaModel cannot be read: "):
        decoder.keys(1, torch.zeros(1, decoder.hidden))


def test_the_trial_leaves_no_trace(text_model, compress):
    module = text_model.model.language_model
    calls = []
    hooks = [
        part.register_forward_hook(lambda *args: calls.append(args))
        for part in (module, module.layers[0], module.layers[0].self_attn)
    ]
    names = set(ALL_ATTENTION_FUNCTIONS)
    config, weights = module.config.to_dict(), copy.deepcopy(text_model.state_dict())
    attributes = [set(vars(part)) for part in text_model.modules()]
    children = [list(part._modules.items()) for part in text_model.modules()]
    generator, ours = torch.get_rng_state(), random.getstate()
    compress(text_model, budget=24).remove()
    for hook in hooks:
        hook.remove()
    assert not calls and set(ALL_ATTENTION_FUNCTIONS) == names and module.config.to_dict() == config
    assert all(torch.equal(value, weights[name]) for name, value in text_model.state_dict().items())
    assert [set(vars(part)) for part in text_model.modules()] == attributes
    assert [list(part._modules.items()) for part in text_model.modules()] == children
    assert torch.equal(torch.get_rng_state(), generator) and random.getstate() == ours


def test_adapters_with_dropout_are_read_in_training_mode(compress):
    config = LoraConfig(
        r=4, target_modules=r".*language_model.*(q_proj|k_proj)", init_lora_weights=False, lora_dropout=0.5
    )
    torch.manual_seed(7)
    model = get_peft_model(copy.deepcopy(readable("qwen3: norm per head")), config).train()
    generator = torch.get_rng_state()
    gains = FrozenDecoder(model.base_model.model.model.language_model).head_gains((0.6, 1.4))
    assert torch.equal(torch.get_rng_state(), generator) and all(part.training for part in model.modules())
    compress(model.eval(), budget=24)
    expected = FrozenDecoder(model.base_model.model.model.language_model).head_gains((0.6, 1.4))
    assert torch.equal(gains, expected)


@pytest.mark.parametrize("name", ["qwen3: norm per head", "olmo2: full-width norm, none before attention"])
def test_offloaded_layers_are_read_like_loaded_ones(name):
    expected = FrozenDecoder(readable(name).model.language_model)
    model = copy.deepcopy(readable(name))
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.model.language_model.layers[0].self_attn.q_norm.weight.is_meta
    decoder = FrozenDecoder(model.model.language_model)
    torch.testing.assert_close(decoder.head_gains((0.6, 1.4)), expected.head_gains((0.6, 1.4)), atol=1e-4, rtol=1e-4)
    hidden = embeddings_for(model.model.language_model)
    rotary = tuple(part[0] for part in decoder.rotary(hidden[None], torch.arange(len(hidden))[None]))
    torch.testing.assert_close(decoder.queries(2, hidden, rotary), expected.queries(2, hidden, rotary))
    assert not decoder.weights_changed()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_is_read_too(text_model, dtype):
    half = copy.deepcopy(text_model).to(dtype).model.language_model
    decoders = [FrozenDecoder(module) for module in (half, text_model.model.language_model)]
    assert not decoders[0].unread
    for layer in range(decoders[0].layers):
        ours, expected = (decoder._reader(layer).recipe for decoder in decoders)
        assert (ours.norm, ours.rotation, ours.rotated) == (expected.norm, expected.rotation, expected.rotated)


def test_other_threads_can_use_the_model_during_the_trial(compress):
    model = readable("qwen2")
    inputs = ask(PROMPT)
    plain = model(**inputs).logits
    answers, stop = [], threading.Event()

    def use():
        while not stop.is_set():
            with torch.no_grad():
                answers.append(model(**inputs).logits)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        for _ in range(20):
            FrozenDecoder(model.model.language_model)
    finally:
        stop.set()
        thread.join()
    assert answers and all(torch.equal(answer, plain) for answer in answers)


def test_one_layer_of_each_kind_is_tried(monkeypatch):
    tried = []
    attend = Capture.attend

    def watch(self, index, *given):
        tried.append(index)
        return attend(self, index, *given)

    monkeypatch.setattr(Capture, "attend", watch)
    FrozenDecoder(readable("llama").model.language_model)
    assert tried == [0]
    FrozenDecoder(readable("smollm3: layers without rotary").model.language_model)
    assert tried == [0, 0, 3]
