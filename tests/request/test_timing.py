"""Timing boundaries, measured cache bytes, and that measuring leaves no trace in the model."""

import pytest
import torch

import covist
from covist import tiny
from covist.request.inputs import Request
from covist.request.timing import cache_bytes, measure, measure_plain_decoder

SIZE = tiny.Size(vision_layers=2, text_layers=1, decoder_layers=4)


@pytest.fixture(scope="module")
def setting():
    model, processor, clip = tiny.build_random(size=SIZE)
    image, question, _ = tiny.demo()
    inputs = processor(images=image, text=tiny.prompt_for(question), return_tensors="pt")
    model.generate(**inputs, max_new_tokens=1)  # transformers installs hooks of its own in the first pass
    return model, processor, clip, Request.of_inputs(dict(inputs))


def hooks(model) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_intervals_lie_inside_each_other(setting):
    model, _, _, request = setting
    took = measure(model, request, max_new_tokens=3)
    assert 0 < took.prefill < took.ttft < took.generation


def test_the_answer_is_that_of_generate(setting):
    model, _, _, request = setting
    expected = model.generate(**request.inputs(model), max_new_tokens=4, do_sample=False)[:, request.length :]
    took = measure(model, request, max_new_tokens=4)
    assert torch.equal(took.output, expected)
    assert took.new_tokens == expected.numel()


@pytest.mark.parametrize("strategy", ["fixed", "pro"])
def test_measured_cache_is_what_the_report_says(setting, strategy):
    model, processor, clip, request = setting
    vanilla = measure(model, request, max_new_tokens=2)
    with covist.compress(model, processor, budget=32, strategy=strategy, clip=clip) as handle:
        took = measure(model, request, max_new_tokens=2)
    assert took.kv_bytes == handle.report.kv_bytes
    assert vanilla.kv_bytes == handle.report.kv_bytes_uncompressed


def test_the_prefill_interval_includes_compression(setting, monkeypatch):
    model, processor, clip, request = setting
    seen = []
    with covist.compress(model, processor, budget=32, clip=clip) as handle:
        method = handle.settings.method
        original = method.begin
        monkeypatch.setattr(method, "begin", lambda *arguments: seen.append(arguments) or original(*arguments))
        took = measure(model, request, max_new_tokens=1)
    assert len(seen) == 1
    assert took.prefill > sum(handle.report.seconds.values())


def test_no_hook_is_left(setting):
    model, _, _, request = setting
    before = hooks(model)
    measure(model, request, max_new_tokens=1)
    assert hooks(model) == before


def test_no_hook_is_left_after_an_error(setting):
    model, _, _, request = setting
    before = hooks(model)
    with pytest.raises(ValueError):
        measure(model, Request(request.prompts, {**request.images, "nonsense": 1}), max_new_tokens=1)
    assert hooks(model) == before


def test_plain_decoder_runs_any_length(setting):
    model = setting[0]
    assert measure_plain_decoder(model, 7) > 0
    assert measure_plain_decoder(model, 700) > 0


def test_cache_bytes_counts_keys_and_values(setting):
    model, _, _, request = setting
    cache = model(**request.inputs(model), use_cache=True).past_key_values
    assert cache_bytes(cache) == 2 * SIZE.decoder_layers * request.length * SIZE.width * 4
