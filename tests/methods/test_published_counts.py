"""Published counts whose layer mean is not the budget that they are named after."""

import pytest

from covist import create_method
from covist.budget import Count
from covist.contract.method import Method
from covist.errors import CovistError
from covist.methods.inside import NominalCounts, published_schedule
from covist.methods.registry import available_methods
from covist.request.budgets import reach

NOMINAL = [name for name, method in available_methods().items() if issubclass(method, NominalCounts)]
PUBLISHED_MEANS = {"priortr": (228, 170, 112), "clse": (208, 145, 81)}


@pytest.mark.parametrize("name", PUBLISHED_MEANS)
def test_nominal_counts_have_the_published_layer_means(name):
    method = create_method(f"{name}:counts=nominal")
    assert tuple(round(method.schedule(32, budget, 576).mean) for budget in (192, 128, 64)) == PUBLISHED_MEANS[name]


@pytest.mark.parametrize("name", NOMINAL)
def test_the_default_is_the_layer_mean(name):
    method = create_method(name)
    assert method.counts == "average" == create_method(name, counts="average").counts
    for budget in (192, 128, 64):
        assert method.schedule(32, budget, 576) == create_method(name, counts="average").schedule(32, budget, 576)


@pytest.mark.parametrize("name", NOMINAL)
@pytest.mark.parametrize("layers", [1, 2, 3, 8, 28, 32, 40])
def test_nominal_counts_fit_every_decoder(name, layers):
    method = create_method(name, counts="nominal")
    for tokens in (2, 35, 576, 2880):
        for budget in (1, 7, 64, tokens - 1, tokens, tokens + 1):
            counts = method.schedule(layers, budget, tokens).tokens_per_layer
            assert len(counts) == layers and min(counts) >= 1 and list(counts) == sorted(counts, reverse=True)
            assert counts[0] <= tokens and (budget < tokens or set(counts) == {tokens})


def test_published_layers_scale_with_the_decoder():
    assert published_schedule(32, 576, (0, 16), (288, 96)).stages == ((0, 288), (16, 96))
    assert published_schedule(64, 576, (3,), (192,)).stages == ((0, 576), (6, 192))


def test_in_short_decoders_the_later_of_two_cuts_on_one_layer_counts():
    assert published_schedule(3, 576, (1, 11, 21), (330, 210, 62)).stages == ((0, 576), (1, 210), (2, 62))
    assert published_schedule(2, 576, (1, 11, 21), (330, 210, 62)).stages == ((0, 576), (1, 62))


def test_counts_never_rise_and_never_reach_zero():
    assert published_schedule(32, 100, (3, 17, 22), (194, 40, 0)).stages == ((0, 100), (3, 100), (17, 40), (22, 1))


def test_a_method_that_acts_before_the_decoder_can_have_published_counts_too():
    class Halves(NominalCounts, Method):
        name, cuts = "halves", (0, 16)

        def nominal_counts(self, budget):
            return 2 * budget, budget

    assert Halves(counts="nominal").schedule(32, 64, 576).stages == ((0, 128), (16, 64))
    assert Halves().schedule(32, 64, 576).stages == ((0, 64),)


def test_unknown_counts_are_refused():
    with pytest.raises(CovistError, match="counts='published': choose 'average' or 'nominal'"):
        create_method("priortr:counts=published")


def test_a_plan_says_what_published_counts_come_to():
    found = reach("priortr:counts=nominal", Count(192), tokens=576, layers=32)
    assert not found.is_reached and found.nominal
    assert found.note == "priortr:counts=nominal uses its published counts for 192: a layer mean of 228.0"
    assert reach("priortr", Count(192), tokens=576, layers=32).note is None


def test_a_combination_counts_as_its_base_does():
    combined = create_method("priortr+csc:counts=nominal")
    assert combined.counts == "nominal"
    assert combined.schedule(32, 192, 576).mean == create_method("priortr:counts=nominal").schedule(32, 192, 576).mean
