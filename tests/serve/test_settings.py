"""Requests that mean the same settings share a batch, however their clients wrote them."""

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import pytest

import covist
from covist import CovistError, Setup
from covist.api.setup import PLAIN
from covist.serve.limits import Limits
from covist.serve.queue import Queue
from covist.serve.schema import CompressionChoice
from covist.serve.sequence import Sequence
from covist.serve.settings import setup_of

SAME = {
    "the default": [
        None,
        {},
        {"budget": 64},
        {"budget": "64"},
        {"strategy": "fixed"},
        {"method": "covist-fixed", "budget": " 64 "},
    ],
    "a share": [{"budget": 0.1}, {"budget": "10%"}, {"budget": "10.0%", "strategy": "fixed"}],
    "a coverage": [{"budget": "auto"}, {"budget": "auto:0.9"}, {"budget": "auto:90%"}],
    "a combination": [{"method": "divprune+csc+sca"}, {"method": "divprune+sca+csc", "budget": 64}],
    "the plain model": [{"budget": "none"}, {"method": "vanilla"}, {"method": "vanilla", "budget": 32}],
    "another strategy": [{"strategy": "pro"}, {"method": "covist-pro"}],
    "a total": [{"budget": "total:2048"}, {"budget": "total: 2048", "strategy": "fixed"}],
    "ages": [{"budget": "ages:256,128"}, {"budget": "ages:256, 128"}],
    "a cap": [{"max_visual_tokens": 512}, {"max_visual_tokens": 512, "budget": 64}],
    "a coverage to reach": [{"min_coverage": 0.9}, {"min_coverage": 0.9, "budget": "64"}],
}


@pytest.fixture(scope="module")
def handle():
    model, processor, clip = covist.tiny.build_random(size=covist.tiny.Size(vision_layers=2, decoder_layers=3))
    setup = Setup(concentration=0.1, constants=covist.CovistConfig(weight_limit=64))
    with covist.compress(model, processor, clip=clip, config=setup, per_call=True) as made:
        yield made


def setup_for(handle, choice):
    return setup_of(handle, None if choice is None else CompressionChoice(**choice))


def batches(handle, *choices):
    """The batches that a queue makes of one request for each choice."""
    prompt = SimpleNamespace(length=10, kept_tokens=10, request=SimpleNamespace(nbytes=1))
    queue = Queue(Limits(batch_milliseconds=0, batch_size=64))
    queue.put([Sequence(prompt, setup_for(handle, choice), lambda event: None) for choice in choices])
    found = []
    while len(queue):
        found.append(len(queue.take()))
    return found


@pytest.mark.parametrize("choices", SAME.values(), ids=SAME.keys())
def test_equal_settings_share_a_batch_however_they_are_written(handle, choices):
    assert batches(handle, *choices) == [len(choices)]


def test_other_settings_do_not_share_a_batch(handle):
    for one, other in combinations(SAME.values(), 2):
        assert batches(handle, one[0], other[0]) == [1, 1]


def test_a_method_of_a_request_gets_what_it_reads_of_the_server(handle):
    with handle.using(config=setup_for(handle, {"strategy": "pro"})):
        method = handle._hooks._choice.settings.method
    assert (method.name, method.tracker.frozen, method.config.weight_limit) == ("covist-pro", 0.1, 64)
    assert setup_for(handle, {"method": "divprune"}) == Setup("divprune", 64)


def test_the_default_by_another_name_runs_the_method_of_the_server(handle):
    with handle.using(config=setup_for(handle, {"strategy": "fixed"})):
        assert handle._hooks._choice.settings.method is handle.settings.method


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"budget": 0}, "budget must be"),
        ({"method": "vispruner:important=0.75"}, "cannot give settings after a colon"),
        ({"method": "divprune", "strategy": "pro"}, "not both"),
        ({"strategy": "slow"}, "choose 'fixed' or 'pro'"),
        ({"method": "divprune", "min_coverage": 0.9}, "does not measure coverage"),
        ({"budget": "total:0"}, "budget must be"),
        ({"budget": "ages:64,128"}, "budget must be"),
        ({"method": "fastv", "max_visual_tokens": 64}, "the first layers see all tokens with fastv"),
        ({"budget": "total:64", "min_coverage": 0.9}, "min_coverage may run images uncompressed"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(handle, choice, complaint):
    with pytest.raises(CovistError, match=complaint) as refused:
        setup_for(handle, choice)
    assert "\n" not in str(refused.value)


def test_a_client_may_lower_the_cap_of_the_server_but_not_raise_it(handle):
    capped = SimpleNamespace(setup=replace(handle.setup, max_visual_tokens=512), using=handle.using)
    found = [setup_for(capped, choice).max_visual_tokens for choice in (None, {}, {"max_visual_tokens": 64})]
    assert found == [512, 512, 64]
    assert setup_for(capped, {"max_visual_tokens": 1024}).max_visual_tokens == 512
    assert setup_for(capped, {"budget": "none"}) == replace(PLAIN, max_visual_tokens=512)
