"""What "covist" in --hf-overrides may say: every setting arrives, and every refusal is one line."""

import sys

import pytest

from covist.budget import Budget, Count, Share
from covist.errors import CovistError
from covist.methods.registry import available_methods
from covist.vllm.settings import Serving, read_budget


def test_a_budget_is_enough():
    serving = Serving.read({"budget": 64})
    assert (serving.method.name, serving.budget) == ("covist-fixed", Count(64))
    assert (serving.instruction, serving.clip, serving.columns) == (False, None, None)


def test_all_settings_are_read():
    serving = Serving.read(
        {
            "budget": "11%",
            "method": "covist-fixed:content=off",
            "constants": {"weight_limit": 64},
            "concentration": 0.25,
            "instruction": True,
            "clip": "somewhere",
            "columns": 32,
        }
    )
    assert serving.method.config.weight_limit == 64 and not serving.method.config.content
    assert serving.method.tracker.read() == 0.25
    assert (serving.budget, serving.instruction, serving.clip, serving.columns) == (Share(0.11), True, "somewhere", 32)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, "--hf-overrides needs"),
        ([64], "--hf-overrides needs"),
        ({}, "no budget"),
        ({"budget": 0}, "budget"),
        ({"budget": "many"}, "budget"),
        ({"budget": "auto"}, "fixes the prompt's length"),
        ({"budget": "auto:0.9:16:192"}, "fixes the prompt's length"),
        ({"budget": 64, "min_coverage": 0.9}, "min_coverage is not possible"),
        ({"budget": 64, "bugdet": 32}, "unknown setting bugdet"),
        ({"budget": 64, "constants": {"nonsense": 1}}, "unknown field nonsense"),
        ({"budget": 64, "concentration": 2}, "concentration must be"),
        ({"budget": 64, "method": "nonsense"}, "nonsense"),
        ({"budget": 64, "method": "vanilla"}, "vanilla"),
        ({"budget": 64, "method": "covist-pro"}, "removes tokens inside the decoder"),
        ({"budget": 64, "method": "fastv"}, "removes tokens inside the decoder"),
        ({"budget": 64, "method": "ivc-prune"}, "removes tokens inside the decoder"),
        ({"budget": 64, "method": "restore-divprune"}, "biases prefill and decoding differently"),
        ({"budget": 64, "instruction": "yes"}, "instruction='yes'"),
        ({"budget": 64, "instruction": True, "clip": 3}, "clip=3"),
        ({"budget": 64, "clip": "somewhere"}, "clip needs the instruction"),
        ({"budget": 64, "columns": "8"}, "columns='8'"),
        ({"budget": 64, "columns": True}, "columns=True"),
        ({"budget": 64, "columns": 12}, "multiple of 8"),
        ({"budget": 64, "columns": 0}, "multiple of 8"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_in_one_line(values, words):
    with pytest.raises(CovistError, match=words) as refused:
        Serving.read(values)
    assert "\n" not in str(refused.value)


def test_every_method_is_served_or_refused_with_a_reason():
    refused = {}
    for name in available_methods():
        try:
            Serving.read({"budget": 64, "method": name})
        except CovistError as error:
            refused[name] = str(error)
    assert {"covist-pro", "fastv", "sparsevlm", "pyramiddrop", "restore-divprune"} <= set(refused)
    assert {"covist-fixed", "covist-max", "divprune", "visionzip", "tome"} & set(refused) == set()
    assert all("inside the decoder" in reason or "differently" in reason for reason in refused.values())


def test_without_a_reference_every_image_counts_as_average_however_many_were_seen():
    tracker = Serving.read({"budget": 64}).method.tracker
    assert tracker.warm_up == sys.maxsize
    for _ in range(100):
        tracker.update(0.9)
    assert tracker.read() is None


def test_a_frozen_reference_does_not_change():
    tracker = Serving.read({"budget": 64, "concentration": 0.25}).method.tracker
    for _ in range(100):
        tracker.update(0.9)
    assert tracker.read() == 0.25


@pytest.mark.parametrize(
    ("budget", "count"), [(None, 64), (48, 48), ("10%", 58), (0.5, 288), (900, 576), ("100%", 576)]
)
def test_a_request_may_have_a_budget_of_its_own(budget, count):
    assert Serving.read({"budget": 64}).count(None if budget is None else Budget.parse(budget), 576) == count


def test_the_budget_of_a_request_is_taken_out_of_its_options():
    assert read_budget({"covist_budget": 48, "num_crops": 4}) == (Count(48), {"num_crops": 4})
    assert read_budget({"num_crops": 4}) == (None, {"num_crops": 4})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"covist_budget": "auto"}, "fixes the prompt's length"),
        ({"covist_budget": -1}, "budget"),
        ({"covist_method": "divprune"}, "unknown option covist_method; covist has only covist_budget"),
    ],
)
def test_wrong_options_of_a_request_are_refused(options, words):
    with pytest.raises(CovistError, match=words):
        read_budget(options)
