"""One model in many threads: what one thread changes reaches no call of another half done."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from support.jitter import in_threads
from support.leftovers import fingerprint
from support.llava import ask, build_llava
from support.requests import greedy, step_logits

from covist import ConcentrationTracker
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


def answer(model, inputs, tokens=2):
    with torch.no_grad():
        return step_logits(greedy(model, inputs, tokens))


def assert_all_equal(results, expected):
    for result in results:
        if isinstance(result, Exception):
            raise result
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


# -- single parts -----------------------------------------------------------------------------------------------------


def test_distance_table_that_grows_in_several_threads():
    """A short prompt must not put its small table in the place of the large one that a long prompt is using."""
    frequencies = torch.tensor([1.0, 0.1, 0.01])
    limits = [10, 50, 200, 800, 3000]
    alone = DistanceTable(frequencies)
    expected = [alone.log_factor(torch.tensor([limit]), torch.arange(limit + 1), limit) for limit in limits]
    for _ in range(8):
        shared = DistanceTable(frequencies, size=4)
        tasks = [
            lambda limit=limit, shared=shared: shared.log_factor(torch.tensor([limit]), torch.arange(limit + 1), limit)
            for limit in limits
        ]
        found = in_threads(tasks, times=3, files=("formulas/attention.py",), chance=0.5)
        for results, factor in zip(found, expected, strict=True):
            assert_all_equal(results, factor)


def test_concentration_tracker_counts_every_image():
    for _ in range(5):
        tracker = ConcentrationTracker(warm_up=10_000)
        tasks = [lambda tracker=tracker: tracker.update(0.25)] * 4
        in_threads(tasks, times=25, files=("concentration.py",), chance=0.5)
        assert tracker.samples == 100
        assert tracker.mean == pytest.approx(0.25)


# -- a handle ---------------------------------------------------------------------------------------------------------

ENGINE = ("covist/engine/", "covist/api/handle.py", "covist/formulas/attention.py")


@pytest.fixture
def own_model():
    return build_llava(kv_heads=2, layers=4)


def test_refresh_while_others_generate(own_model, compress, strategy):
    handle = compress(own_model, budget=24, strategy=strategy)
    inputs, other = ask(PROMPT), ask("what <image> is <image>", seeds=(2, 3))
    expected = [answer(own_model, inputs), answer(own_model, other)]
    tasks = [
        lambda: answer(own_model, inputs),
        lambda: answer(own_model, other),
        lambda: handle.refresh(),
        lambda: handle.refresh(),
    ]
    first, second, *refreshed = in_threads(tasks, times=3, files=ENGINE)
    assert_all_equal(first, expected[0])
    assert_all_equal(second, expected[1])
    assert [result for results in refreshed for result in results] == [None] * 6


def test_changed_weights_are_read_once_for_all_threads(own_model, compress, strategy):
    """Every thread notices the change; none may answer with the gains of before, or with half of the new ones."""
    handle, inputs = compress(own_model, budget=24, strategy=strategy), ask(PROMPT)
    answer(own_model, inputs)
    for layer in own_model.model.language_model.layers[::2]:
        layer.self_attn.q_proj.weight[::3] *= 4
    found = in_threads([lambda: answer(own_model, inputs)] * 3, times=2, files=ENGINE)
    handle.remove()
    compress(own_model, budget=24, strategy=strategy)
    expected = answer(own_model, inputs)
    for results in found:
        assert_all_equal(results, expected)


def test_prompts_of_growing_length(own_model, compress, strategy):
    """Each thread needs larger tables than the one before."""
    compress(own_model, budget=24, strategy=strategy)
    prompts = [ask("USER: " + "<image> and " * count + "what ? ASSISTANT:") for count in (1, 2, 4)]
    other = build_llava(kv_heads=2, layers=4)
    compress(other, budget=24, strategy=strategy)
    expected = [answer(other, inputs) for inputs in prompts]
    found = in_threads([lambda inputs=inputs: answer(own_model, inputs) for inputs in prompts], 2, ENGINE)
    for results, logits in zip(found, expected, strict=True):
        assert_all_equal(results, logits)


def test_other_settings_in_every_thread(own_model, compress):
    handle, inputs = compress(own_model, budget=24, per_call=True), ask(PROMPT)
    choices = [{}, {"budget": 12}, {"strategy": "pro", "concentration": 0.05}, {"method": "transprune", "budget": 48}]

    def chosen(choice):
        with handle.using(**choice):
            return answer(own_model, inputs)

    found = in_threads([lambda choice=choice: chosen(choice) for choice in choices], 2, ENGINE)
    for choice, results in zip(choices, found, strict=True):
        assert_all_equal(results, chosen(choice))


# -- removal during a call --------------------------------------------------------------------------------------------

PLACES = {
    "vision tower": lambda model: model.model.vision_tower.encoder.layers[0],
    "projector": lambda model: model.model.multi_modal_projector,
    "first layer": lambda model: model.model.language_model.layers[0],
    "middle": lambda model: model.model.language_model.layers[2].self_attn,
    "last layer": lambda model: model.model.language_model.layers[3],
}


@pytest.mark.parametrize("step", ["prefill", "decoding"])
@pytest.mark.parametrize("place", PLACES)
def test_removal_during_a_call(own_model, compress, strategy, place, step):
    """The call ends as it began, or as the plain model does, or with one clear line; never with other numbers."""
    if step == "decoding" and place in ("vision tower", "projector"):
        pytest.skip("a decoding step encodes nothing")
    inputs = ask(PROMPT)
    plain = answer(own_model, inputs, 1), own_model(**inputs).logits
    before = fingerprint(own_model)
    handle = compress(own_model, budget=24, strategy=strategy)
    first = greedy(own_model, inputs, 1)
    request = dict(inputs)
    if step == "decoding":
        request = {"input_ids": first.sequences[:, -1:], "past_key_values": first.past_key_values}
        twin = greedy(own_model, inputs, 1)
        allowed = [own_model(twin.sequences[:, -1:], past_key_values=twin.past_key_values).logits]
    else:
        allowed = [own_model(**inputs).logits, plain[1]]

    def remove(*_):
        hook.remove()
        thread = threading.Thread(target=handle.remove)
        thread.start()
        thread.join(0.5)  # a removal that waits for the call would wait for ever here

    hook = PLACES[place](own_model).register_forward_hook(remove)
    try:
        found = own_model(**request).logits
        assert any(torch.allclose(found, logits, atol=1e-5) for logits in allowed)
    except CovistError as refusal:
        assert "remove" in str(refusal) and "\n" not in str(refusal)
    handle.remove()
    assert fingerprint(own_model) == before
    assert torch.equal(answer(own_model, inputs, 1), plain[0])


def test_removal_while_other_threads_generate(own_model, compress, strategy):
    inputs = ask(PROMPT)
    plain = answer(own_model, inputs)
    handle = compress(own_model, budget=24, strategy=strategy)
    compressed = answer(own_model, inputs)
    found = in_threads([lambda: answer(own_model, inputs)] * 2 + [handle.remove], times=3, files=ENGINE)
    for result in (one for results in found[:2] for one in results):
        if isinstance(result, CovistError):
            assert "remove" in str(result) or "compress the model again" in str(result)
            continue
        if isinstance(result, Exception):
            raise result
        assert any(torch.allclose(result, logits, atol=1e-4) for logits in (plain, compressed))
    assert torch.equal(answer(own_model, inputs), plain)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_report_does_not_keep_the_pixels_of_the_call(own_model, compress, strategy):
    """A server keeps reports; the pixels of a batch of high-resolution images are hundreds of megabytes."""
    handle, inputs = compress(own_model, budget=24, strategy=strategy), dict(ask(PROMPT, PROMPT))
    memory = np.array(inputs["pixel_values"].numpy())  # torch holds the array as long as any of its tensors lives
    inputs["pixel_values"] = torch.from_numpy(memory)
    trace = weakref.ref(memory)
    del memory
    greedy(own_model, inputs, 2)
    del inputs
    gc.collect()
    assert handle.report is not None and trace() is None
    assert len(handle.report.images) == 2
