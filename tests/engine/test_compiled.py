"""Compiled steps after an uncompiled, compressed prompt: the same tokens, no graph break, no compilation per token."""

import copy

import pytest
import torch
from support.cases import first_of
from support.llava import ask, build_llava
from support.requests import assert_same, greedy
from torch._dynamo.utils import counters
from transformers import CompileConfig, StaticCache

pytestmark = pytest.mark.own_rounding
PROMPT = "USER: <image> what color is this ? ASSISTANT:"
PROMPTS = {"USER: <image> and <image> where is this ? ASSISTANT:": 24, PROMPT: 40, "<image> what": 8}
"""Prompts and their budgets. The longest comes first, as `generate` makes its caches as large as the largest so far."""


@pytest.fixture(autouse=True)
def counted():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def model():
    return build_llava(kv_heads=2, layers=2)


def compiled_by_generate(backend="eager"):
    config = CompileConfig(backend=backend, mode=None, fullgraph=True)
    config._compile_all_devices = True  # on the CPU, too
    return {"cache_implementation": "static", "compile_config": config}


def compilations():
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("method", ["covist-fixed", pytest.param("divprune", marks=pytest.mark.slow)])
def test_one_compilation_serves_prompts_and_budgets(model, compress, method):
    handle = compress(model, method=method, concentration=0.05 if method == "covist-fixed" else None, per_call=True)
    for text, budget in PROMPTS.items():
        with handle.using(budget=budget):
            expected = greedy(model, ask(text), 64)
            assert_same(greedy(model, ask(text), 64, **compiled_by_generate()), expected)
    assert compilations() == 1


@pytest.mark.parametrize("order", ["compiled first", pytest.param("compressed first", marks=pytest.mark.slow)])
def test_a_compiled_forward(model, compress, order):
    """`fullgraph=True` concerns steps only."""
    if order == "compiled first":
        model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    compress(model, budget=24)
    if order == "compressed first":
        model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    inputs = ask(PROMPT, "<image> what")
    with torch.compiler.set_stance("force_eager"):
        expected = greedy(model, inputs, 8)
    assert not counters["stats"]
    assert_same(greedy(model, inputs, 8, cache_implementation="static"), expected)
    assert compilations() == 1


@pytest.mark.parametrize(
    "how",
    ["torch.compile(model)", *(pytest.param(how, marks=pytest.mark.slow) for how in ("model.compile()", "layers"))],
)
def test_own_loops_over_a_compiled_model(model, compress, how):
    """A prompt leaves the compiled code; steps are one graph, or one for each layer, as in the plain model."""
    compress(model, budget=24)
    expected = greedy(model, ask(PROMPT), 6)
    call = torch.compile(model, backend="eager") if how == "torch.compile(model)" else model
    if how == "model.compile()":
        model.compile(backend="eager")
    if how == "layers":
        for layer in model.model.language_model.layers:
            layer.compile(backend="eager", fullgraph=True)
    cache = StaticCache(config=model.config, max_cache_len=64)
    logits = [call(**ask(PROMPT), past_key_values=cache).logits[:, -1]]
    counters.clear()
    for token in expected.sequences[0, -6:-1]:
        logits.append(call(input_ids=token.view(1, 1), past_key_values=cache).logits[:, -1])
    torch.testing.assert_close(torch.stack(logits), torch.stack(expected.logits))
    assert compilations() == (2 if how == "layers" else 1)


def test_a_text_model_by_itself(model, compress):
    compress(model, budget=24)
    cache = StaticCache(config=model.config, max_cache_len=64)
    model(**ask(PROMPT), past_key_values=cache)
    twin, token = copy.deepcopy(cache), torch.tensor([[5]])
    expected = model.model.language_model(input_ids=token, past_key_values=cache).last_hidden_state
    step = torch.compile(model.model.language_model, backend="eager", fullgraph=True)
    torch.testing.assert_close(step(input_ids=token, past_key_values=twin).last_hidden_state, expected)
    assert compilations() == 1


def test_a_compiled_text_model(model, compress):
    model.model.language_model.compile(backend="eager", fullgraph=True)
    compress(model, budget=24)
    with torch.compiler.set_stance("force_eager"):
        expected = greedy(model, ask(PROMPT), 6)
    assert_same(greedy(model, ask(PROMPT), 6, cache_implementation="static"), expected)
    assert compilations() == 1


def test_positions_with_axes(compress):
    case = first_of("qwen2.5-vl")
    inputs = case.ask("{image}what is the colour of this ?")
    compress(case.model, processor=case.processor(), budget=12)
    expected = greedy(case.model, inputs, 4)
    assert_same(greedy(case.model, inputs, 4, **compiled_by_generate()), expected)
    assert compilations() == 1


@pytest.mark.parametrize("how", ["compile", pytest.param("forward", marks=pytest.mark.slow)])
def test_a_compiled_vision_tower_is_read(model, compress, how):
    """While its attention is read, it runs uncompiled; afterwards it is what it was."""
    inputs, tower = ask(PROMPT), model.model.vision_tower
    handle = compress(model, budget=24)
    expected = greedy(model, inputs, 3)
    handle.remove()
    if how == "compile":
        tower.compile(backend="eager")
    else:
        tower.forward = torch.compile(tower.forward, backend="eager")
    handle = compress(model, budget=24)
    assert_same(greedy(model, inputs, 3), expected, 0)
    assert not counters["stats"]
    handle.remove()
    greedy(model, inputs, 3)
    assert counters["stats"]


def test_compression_comes_and_goes_between_compiled_calls(model, compress):
    inputs, options = ask(PROMPT), compiled_by_generate()
    plain = greedy(model, inputs, 4)
    assert_same(greedy(model, inputs, 4, **options), plain)
    handle = compress(model, budget=24)
    compressed = greedy(model, inputs, 4)
    assert not torch.equal(compressed.logits[1], plain.logits[1])
    assert_same(greedy(model, inputs, 4, **options), compressed)
    with handle.using(budget="none"):
        assert_same(greedy(model, inputs, 4, **options), plain)
    handle.remove()
    assert_same(greedy(model, inputs, 4, **options), plain)


def test_an_error_in_a_prompt_leaves_compilation_on(model, compress, monkeypatch):
    model.forward = torch.compile(model.forward, backend="eager")
    compress(model, budget=24)
    monkeypatch.setattr("covist.engine.prefill.Prefill.finish", lambda self, output: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**ask(PROMPT))
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_a_growing_cache_is_refused(model, compress):
    """torch puts the error of a traced hook into one of its own, with our line first."""
    compress(model, budget=24)
    output = model(**ask(PROMPT))
    step = torch.compile(model, backend="eager")
    with pytest.raises(Exception, match="steps of one token over a static cache: pass cache_implementation='static'"):
        step(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=output.past_key_values)


def test_a_prompt_in_a_full_graph_is_refused(model, compress):
    compress(model, budget=24)
    with pytest.raises(Exception, match="a prompt is compressed in an uncompiled call"):
        torch.compile(model, backend="eager", fullgraph=True)(**ask(PROMPT))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends(model, compress, backend):
    compress(model, budget=24)
    expected = greedy(model, ask(PROMPT), 8)
    assert_same(greedy(model, ask(PROMPT), 8, **compiled_by_generate(backend)), expected)
    assert compilations() == 1
