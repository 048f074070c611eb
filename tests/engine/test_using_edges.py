"""Settings for single calls: as they are written, as often as one likes, and gone when they are over."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from support.leftovers import hooks_on, objects_of_covist
from support.llava import ask
from support.requests import greedy, step_logits

from covist.errors import CovistError
from covist.methods.covist import CovistFixed

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
SAME = {
    "pairs as lists": ({"gain_range": [0.5, 1.2]}, {"gain_range": (0.5, 1.2)}),
    "pairs as arrays": ({"gain_range": np.array([0.5, 1.2])}, {"gain_range": (0.5, 1.2)}),
    "lists of lists": (
        {"uniform_coefficients": [[16, 0.5], [64, 0.25]]},
        {"uniform_coefficients": ((16, 0.5), (64, 0.25))},
    ),
    "number of numpy": ({"weight_limit": np.float64(16)}, {"weight_limit": 16.0}),
}


@pytest.mark.parametrize(("given", "plain"), SAME.values(), ids=SAME.keys())
def test_settings_may_be_lists(multi_head, compress, given, plain):
    handle, inputs = compress(multi_head, budget=24), ask(PROMPT)
    found = {}
    for name, options in (("given", given), ("plain", plain)):
        with handle.using(concentration=0.05, **options):
            found[name] = step_logits(greedy(multi_head, inputs, 2))
    assert torch.equal(found["given"], found["plain"])


@pytest.mark.parametrize("wrong", [[1], {"a": 1}, "wide", [2, 1], object()], ids=lambda wrong: type(wrong).__name__)
def test_settings_that_are_wrong_are_one_line(multi_head, compress, wrong):
    handle = compress(multi_head, budget=24)
    with pytest.raises(CovistError, match="gain_range") as complaint, handle.using(gain_range=wrong):
        pass
    assert "\n" not in str(complaint.value)


def test_a_list_and_a_tuple_are_the_same_choice(multi_head, compress):
    """Settings that were used before continue with what they remember."""
    handle = compress(multi_head, budget=24)
    with handle.using(strategy="fixed", gain_range=[0.5, 1.2]):
        multi_head(**ask(PROMPT, seeds=(1,)))
    before = objects_of_covist()
    with handle.using(strategy="fixed", gain_range=(0.5, 1.2)):
        multi_head(**ask(PROMPT, seeds=(1,)))
    assert objects_of_covist() <= before


# -- many of them -----------------------------------------------------------------------------------------------------


def use(model, handle, numbers, **options):
    for number in numbers:
        with handle.using(concentration=number / 1000, **options):
            model(**ask(PROMPT, seeds=(1,)))


@pytest.mark.parametrize("options", [{}, {"strategy": "pro"}], ids=["fixed", "pro"])
def test_settings_that_never_come_again_are_freed(multi_head, compress, options):
    """A server lets every request choose: what it remembers must not grow with the requests."""
    handle = compress(multi_head, budget=24, per_call=True)
    use(multi_head, handle, range(100), **options)
    before = objects_of_covist()
    use(multi_head, handle, range(100, 200), **options)
    assert objects_of_covist() <= before + 10


def test_method_object_of_a_call_is_freed(multi_head, compress):
    handle = compress(multi_head, budget=24)
    method = CovistFixed()
    with handle.using(method=method):
        multi_head(**ask(PROMPT))
    trace = weakref.ref(method)
    del method
    for _ in range(100):  # a bounded memory may still hold the latest ones
        with handle.using(method=CovistFixed()):
            pass
    gc.collect()
    assert trace() is None


def test_settings_of_a_call_put_no_hooks_on_the_model(multi_head, compress):
    handle = compress(multi_head, budget=24, per_call=True)
    with handle.using(method="transprune"):
        multi_head(**ask(PROMPT))
    before = hooks_on(multi_head)
    for number in range(1, 10):
        with handle.using(method="transprune", budget=20 + number), handle.using(concentration=number / 1000):
            multi_head(**ask(PROMPT))
    assert hooks_on(multi_head) == before


def test_threads_that_end_leave_nothing(multi_head, compress):
    handle = compress(multi_head, budget=24)

    def work(number):
        with torch.no_grad(), handle.using(budget=number + 2):
            multi_head(**ask(PROMPT, seeds=(1,)))

    def run(numbers):
        for number in numbers:
            thread = threading.Thread(target=work, args=(number,))
            thread.start()
            thread.join()

    run(range(5))
    before = objects_of_covist()
    run(range(30))
    assert objects_of_covist() <= before + 5


def test_a_choice_that_is_never_left_does_not_reach_other_threads(multi_head, compress):
    """A generator that is dropped inside a block ends with it."""
    handle, inputs = compress(multi_head, budget=24), ask(PROMPT)

    def answers():
        with handle.using(budget=12):
            yield multi_head(**inputs)

    next(answers())
    gc.collect()
    multi_head(**inputs)
    assert handle.report.mean_tokens == 24
