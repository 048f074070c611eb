"""Somebody else may wrap the methods that covist wraps: removal takes away covist's part and nothing else."""

import functools

import pytest
import torch
from support.leftovers import fingerprint
from support.llava import ask
from support.requests import assert_same, greedy, step_logits

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
PLACES = {
    "generate": lambda model: (model, "generate"),
    "get_image_features": lambda model: (model.model, "get_image_features"),
}


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def place(request, multi_head):
    """An object and the name of one of its methods that covist wraps; it is the class's own again after the test."""
    owner, name = request.param(multi_head)
    yield owner, name
    vars(owner).pop(name, None)


class Counting:
    """A wrapper as users write them."""

    def __init__(self, owner, name):
        original = getattr(owner, name)
        self.calls = 0

        @functools.wraps(original)
        def method(*args, **kwargs):
            self.calls += 1
            return original(*args, **kwargs)

        self.original, self.method = original, method
        setattr(owner, name, method)


def test_wrapper_put_on_later_stays(multi_head, compress, place):
    owner, name = place
    inputs = ask(PROMPT)
    plain = greedy(multi_head, inputs, 2)
    handle = compress(multi_head, budget=24)
    theirs = Counting(owner, name)
    compressed = step_logits(greedy(multi_head, inputs, 2))
    assert theirs.calls == 1 and not torch.equal(compressed, step_logits(plain))
    handle.remove()
    assert vars(owner)[name] is theirs.method
    assert_same(greedy(multi_head, inputs, 2), plain, 0)
    assert theirs.calls == 2


def test_wrapper_that_is_taken_off_after_removal_leaves_nothing(multi_head, compress, place):
    """Their undo puts back what they found, which is covist's: it must do nothing any more."""
    owner, name = place
    inputs = ask(PROMPT)
    plain = greedy(multi_head, inputs, 2)
    handle = compress(multi_head, budget=24)
    theirs = Counting(owner, name)
    handle.remove()
    setattr(owner, name, theirs.original)
    assert_same(greedy(multi_head, inputs, 2), plain, 0)
    expected = compress(multi_head, budget=32)
    greedy(multi_head, inputs, 2)
    assert expected.report.mean_tokens == 32 and handle.report is None


def test_wrapper_that_is_taken_off_before_removal(multi_head, compress, place):
    owner, name = place
    before = fingerprint(multi_head)
    handle = compress(multi_head, budget=24)
    theirs = Counting(owner, name)
    setattr(owner, name, theirs.original)
    handle.remove()
    assert fingerprint(multi_head) == before


def test_wrapper_between_two_handles(multi_head, compress, place):
    owner, name = place
    inputs = ask(PROMPT)
    first = compress(multi_head, budget=24)
    theirs = Counting(owner, name)
    first.remove()
    second = compress(multi_head, budget=32)
    greedy(multi_head, inputs, 2)
    assert theirs.calls == 1 and second.report.mean_tokens == 32
    second.remove()
    assert vars(owner)[name] is theirs.method


def test_removal_survives_a_method_deleted_by_others(multi_head, compress, place):
    """An undo by `del` of what they did not put there; removal must not raise."""
    owner, name = place
    handle = compress(multi_head, budget=24)
    delattr(owner, name)
    handle.remove()
    assert name not in vars(owner)
