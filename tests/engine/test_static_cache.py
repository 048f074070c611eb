"""Static, quantised and offloaded caches: the tokens of the dynamic cache, or a refusal that says why."""

import copy

import pytest
import torch
from support.layer_kinds import model_of
from support.llava import ask
from support.requests import assert_same, greedy, kept_keys
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Fp8QuantizedLayer, QuantizedCache

from covist.engine.fixed_step import FixedStep
from covist.engine.sequence.cache import book_of
from covist.errors import CovistError
from covist.methods.create import create_method

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
BATCH = (PROMPT, "<image> what", "USER: <image> and <image> where is this ? ASSISTANT:")
METHODS = ["covist-fixed", "covist-max", "divprune", "restore-holov"]
STATIC = {"cache_implementation": "static"}


def options(method):
    return {"method": method, "budget": 24, **({} if create_method(method).tracker else {"concentration": None})}


@pytest.mark.parametrize("method", METHODS)
def test_a_static_cache_gives_what_a_dynamic_one_gives(grouped_query, compress, method):
    """`restore-holov` has another bias in every layer, mean weights in the first."""
    inputs = ask(*BATCH)
    compress(grouped_query, **options(method))
    assert_same(greedy(grouped_query, inputs, 6, **STATIC), greedy(grouped_query, inputs, 6))


FEW = ["sliding", "sliding, two rotary tables", "chunked"]
MORE = ["sliding, shared keys", "linear", "convolution", "mamba", "latent keys"]


@pytest.mark.parametrize("kind", [*FEW, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE)])
def test_windows_and_hybrid_caches(compress, kind):
    """24 tokens of an image exceed a window, and so does what is generated after a shorter prompt."""
    model, inputs = model_of(kind), ask(PROMPT, "<image> what")
    for budget in (24, 4):
        handle = compress(model, budget=budget, concentration=0.05)
        assert_same(greedy(model, inputs, 12, **STATIC), greedy(model, inputs, 12))
        handle.remove()


def test_beams(grouped_query, compress):
    inputs = ask(PROMPT, "<image> what")
    compress(grouped_query, budget=24)
    found = greedy(grouped_query, inputs, 5, num_beams=3, **STATIC)
    assert torch.equal(found.sequences, greedy(grouped_query, inputs, 5, num_beams=3).sequences)


def test_samples_in_another_order(grouped_query, compress):
    """As beam search takes them, with weights that are not those of the same image."""
    inputs, order, token = ask(PROMPT, "<image> what"), torch.tensor([1, 0]), torch.tensor([[5], [6]])
    compress(grouped_query, budget=24)
    found = []
    for cache in (room(grouped_query, 60), DynamicCache()):
        grouped_query(**inputs, past_key_values=cache)
        grouped_query(input_ids=token, past_key_values=cache)
        cache.reorder_cache(order)
        found.append(grouped_query(input_ids=token, past_key_values=cache).logits)
    torch.testing.assert_close(*found)


def room(model, size):
    return StaticCache(config=model.config, max_cache_len=size)


@pytest.mark.parametrize("later", ["where is this ?", "<image> where is this ?"])
def test_further_turns(grouped_query, compress, later):
    """A text, an image with its question, then a text or another image; the cache has room for what is left."""
    compress(grouped_query, budget=24, processor=None)
    answers = {}
    for name, cache in {"static": room(grouped_query, 100), "dynamic": DynamicCache()}.items():
        sequence, found = ask("hello")["input_ids"], []
        for text in (None, PROMPT, later):
            turn = {} if text is None else dict(ask(text))
            turn["input_ids"] = sequence if text is None else torch.cat([sequence, turn["input_ids"]], 1)
            turn.pop("attention_mask", None)
            output = greedy(grouped_query, turn, 4, past_key_values=cache)
            sequence = output.sequences
            found.append(output)
        answers[name] = found
    for found, expected in zip(answers["static"], answers["dynamic"], strict=True):
        assert_same(found, expected)


def test_a_copy_continues_like_the_original(grouped_query, compress):
    compress(grouped_query, budget=24)
    first = greedy(grouped_query, ask(PROMPT), 3, past_key_values=room(grouped_query, 80))
    follow_up = {"input_ids": torch.cat([first.sequences, ask("where is this ?")["input_ids"]], 1)}
    twin = copy.deepcopy(first.past_key_values)
    expected = greedy(grouped_query, follow_up, 3, past_key_values=first.past_key_values)
    assert_same(greedy(grouped_query, follow_up, 3, past_key_values=twin), expected, 0)


def test_addresses_stay_over_prompts_of_one_cache(grouped_query, compress):
    """CUDA graphs are recorded at addresses."""
    compress(grouped_query, budget=24)
    cache, seen, answers = room(grouped_query, 80), set(), []

    def addresses(fixed):
        tensors = [getattr(fixed.keys, name) for name in vars(fixed.keys)]
        return tuple(one.data_ptr() for one in (*tensors, fixed.shift, fixed.held, fixed.removed, *fixed.rule.tensors))

    for text in (PROMPT, "<image> what", PROMPT):
        answers.append(greedy(grouped_query, ask(text), 3, past_key_values=cache))
        seen.add(addresses(book_of(cache).fixed))
        cache.reset()
    assert len(seen) == 1
    assert_same(answers[2], answers[0], 0)


def test_steps_take_the_fixed_form(grouped_query, compress, monkeypatch):
    """The control of this file: without its bias, a step is noticed."""
    compress(grouped_query, budget=24)
    expected = greedy(grouped_query, ask(PROMPT), 3)
    monkeypatch.setattr(FixedStep, "_bias", lambda self, layer, room: torch.zeros(1))
    with pytest.raises(AssertionError):
        assert_same(greedy(grouped_query, ask(PROMPT), 3, **STATIC), expected)


@pytest.mark.parametrize("method", ["covist-pro", "fastv"])
def test_methods_inside_the_decoder_are_refused(grouped_query, compress, method):
    compress(grouped_query, **options(method))
    expected = greedy(grouped_query, ask(PROMPT), 2)
    with pytest.raises(CovistError, match="inside the decoder, .* a StaticCache cannot .* acts before the decoder"):
        greedy(grouped_query, ask(PROMPT), 2, **STATIC)
    assert_same(greedy(grouped_query, ask(PROMPT), 2), expected, 0)


def test_too_little_room_is_refused(grouped_query, compress):
    compress(grouped_query, budget=24)
    with pytest.raises(CovistError, match="has room for 30 keys, but the prompt is left with 3[1-9]; make it larger"):
        grouped_query(**ask(PROMPT), past_key_values=room(grouped_query, 30))


def test_indexers_are_refused(compress):
    model = model_of("chosen keys")
    compress(model, budget=24)
    with pytest.raises(CovistError, match="does not know which keys a StaticIndexedLayer of StaticCache holds"):
        greedy(model, ask(PROMPT), 2, **STATIC)


def test_an_uncompressed_prompt_runs_as_in_the_plain_model(grouped_query, compress):
    text = {"input_ids": ask("where is this ?")["input_ids"]}
    expected = greedy(grouped_query, text, 3, **STATIC)
    compress(grouped_query, budget=24)
    assert_same(greedy(grouped_query, text, 3, **STATIC), expected, 0)


# -- caches that grow --------------------------------------------------------------------------------------------------


def quantised(model):
    return QuantizedCache(backend="fp8", config=model.config)


@pytest.mark.parametrize("method", ["covist-fixed", "covist-pro", "divprune"])
def test_a_quantised_cache_gives_what_its_keys_give(grouped_query, compress, monkeypatch, method):
    """Eight bits would hide a difference, so they are all the bits of float32 here."""
    monkeypatch.setattr(Fp8QuantizedLayer, "fp8_dtype", torch.float32)
    inputs = ask(PROMPT, "<image> what")
    compress(grouped_query, **options(method))
    expected = greedy(grouped_query, inputs, 4)
    found = greedy(grouped_query, inputs, 4, past_key_values=quantised(grouped_query))
    assert_same(found, expected, 1e-4)
    assert [layer.held for layer in found.past_key_values.layers] == kept_keys(expected.past_key_values)


def test_a_quantised_cache_is_not_cut(grouped_query, compress):
    compress(grouped_query, **options("ivc-prune"))
    with pytest.raises(CovistError, match="ivc-prune removes keys that a QuantizedCache has already quantised"):
        greedy(grouped_query, ask(PROMPT), 2, past_key_values=quantised(grouped_query))


class NoStream:
    """In place of a CUDA stream."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def wait_stream(self, other):
        return None


@pytest.mark.parametrize("method", ["covist-fixed", "covist-pro"])
@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
def test_an_offloaded_cache_is_a_cache(grouped_query, compress, monkeypatch, method, kind):
    """Streams are stand-ins: here the device is the one that keys are moved to."""
    if "static" in kind and method == "covist-pro":
        pytest.skip("refused like every static cache")
    monkeypatch.setattr(torch, "Stream", NoStream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: NoStream())
    compress(grouped_query, **options(method))
    expected = greedy(grouped_query, ask(PROMPT), 3)
    assert_same(greedy(grouped_query, ask(PROMPT), 3, cache_implementation=kind), expected)
