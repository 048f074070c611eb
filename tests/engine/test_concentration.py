"""The concentration reference: frozen, results do not depend on earlier images; running, they do."""

import pytest
import torch
from support.llava import ask
from support.requests import greedy, step_logits

from covist.formulas.concentration import ConcentrationTracker
from covist.methods.covist import CovistFixed

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


def indices(handle):
    return handle.report.images[0].stages[0].indices


def test_frozen_reference_is_independent_of_history(multi_head, strategy, compress):
    handle = compress(multi_head, budget=40, strategy=strategy, concentration=0.02)
    first = step_logits(greedy(multi_head, ask(PROMPT), 2))
    tracker = handle.settings.method.tracker
    for _ in range(20):
        tracker.update(0.9)
    multi_head(**ask(PROMPT, seeds=(1,)))
    assert torch.equal(step_logits(greedy(multi_head, ask(PROMPT), 2)), first)
    assert tracker.samples == 0


def test_value_of_the_reference_matters(multi_head, compress):
    """Otherwise the test above could not fail."""
    chosen = []
    for value in (1e-4, 0.9):
        handle = compress(multi_head, budget=40, concentration=value)
        multi_head(**ask(PROMPT))
        chosen.append(indices(handle))
        handle.remove()
    assert not torch.equal(*chosen)


@pytest.mark.parametrize("given", [lambda value: {"concentration": value}, lambda value: {}], ids=["using", "freeze"])
def test_an_encoding_meets_the_reference_of_each_call(multi_head, compress, given):
    """Encoded once and asked under two references: the same tokens as with fresh pixels under each."""
    handle, inputs = compress(multi_head, budget=40), ask(PROMPT)
    encoded = multi_head.get_image_features(inputs["pixel_values"], return_dict=True)
    for value in (1e-4, 0.9):
        handle.settings.method.tracker.freeze(value)
        kept = []
        for visual in ({"mm_encoder_outputs": {"image": encoded}}, {"pixel_values": inputs["pixel_values"]}):
            with handle.using(**given(value)) as run:
                multi_head(inputs["input_ids"], **visual)
            kept.append(run.report.images[0].kept)
        assert torch.equal(*kept)


def test_an_encoding_counts_once_for_each_reference(multi_head, compress):
    handle, inputs = compress(multi_head, budget=40, concentration=None), ask(PROMPT)
    encoded = multi_head.get_image_features(inputs["pixel_values"], return_dict=True)
    other = CovistFixed()
    for method in (None, other, None, other):
        with handle.using(method=method):
            multi_head(inputs["input_ids"], mm_encoder_outputs={"image": encoded})
    assert [tracker.samples for tracker in (handle.settings.method.tracker, other.tracker)] == [1, 1]


@pytest.fixture
def running(multi_head, compress):
    """A handle with the running reference after seventeen unlike images (the warm-up is sixteen)."""
    handle = compress(multi_head, budget=40, concentration=None)
    multi_head(**ask(PROMPT))
    handle.fresh = indices(handle)
    tracker = handle.settings.method.tracker
    for _ in range(17):
        tracker.update(0.9)
    return handle


def test_running_reference_depends_on_history(multi_head, running):
    multi_head(**ask(PROMPT))
    assert not torch.equal(indices(running), running.fresh)
    assert running.settings.method.tracker.samples == 19


def test_running_reference_can_be_reset(multi_head, running):
    running.settings.method.tracker.reset()
    multi_head(**ask(PROMPT))
    assert torch.equal(indices(running), running.fresh)


def test_running_reference_can_be_saved_and_restored(multi_head, running, tmp_path):
    tracker = running.settings.method.tracker
    tracker.save(tmp_path / "reference.json")
    multi_head(**ask(PROMPT))
    expected = indices(running)
    tracker.reset()
    tracker.load_state_dict(ConcentrationTracker.load(tmp_path / "reference.json").state_dict())
    multi_head(**ask(PROMPT))
    assert torch.equal(indices(running), expected)


def test_every_image_counts_once(multi_head, compress):
    handle = compress(multi_head, budget=40, concentration=None)
    greedy(multi_head, ask("<image> and <image>", PROMPT), 2, num_beams=2)
    assert handle.settings.method.tracker.samples == 3
