"""How many tokens an image needs."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import adaptive as reference
from reference.coverage import objective

from covist.config import CovistConfig
from covist.errors import CovistError
from covist.formulas import greedy
from covist.formulas.adaptive import order, smallest_selection
from covist.formulas.coverage import coverage_share, covered_by
from covist.formulas.selection import InstructionEvidence, initial_selection, weigh
from formulas.inputs import STRUCTURED, array, generator, image

CONFIG = CovistConfig()


def weighed(made, asked=True):
    pi = (3 * torch.rand(made.size, generator=generator(9))).softmax(0)
    instruction = InstructionEvidence(pi, True, 0.3) if asked else None
    return weigh(made.attention, made.keys, made.embeddings, made.grid, CONFIG, instruction)


def count_at(one, level, least=1, most=None):
    return len(smallest_selection(one, level, least, most or one.size).kept)


@pytest.mark.parametrize("views", [((5, 7),), ((3, 4), (4, 5))])
@pytest.mark.parametrize("asked", [True, False])
def test_the_order_is_that_of_the_literal_loop(views, asked):
    one = weighed(image(views, seed=3), asked)
    most = one.size - 2
    found = list(islice(order(one, most), most))
    s, omega = array(one.affinity), array(one.omega(most))
    expected = reference.order(
        array(one.maps["attention"]), one.concentration, s, omega, one.anchors(most).tolist(), most
    )
    assert [token for token, _ in found] == expected
    for length, (_, coverage) in enumerate(found, 1):
        assert coverage == pytest.approx(reference.share(s, omega, expected[:length]), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_count_is_that_of_the_literal_search(seed):
    one = weighed(image(((4, 6),), seed=seed))
    least, most = 2, 18
    s = array(one.affinity)
    tokens = [token for token, _ in islice(order(one, most), most)]
    curve = {k: reference.share(s, array(one.omega(most)), tokens[:k]) for k in range(1, most + 1)}
    selections = {k: reference.share(s, array(one.omega(k)), one.select(k).kept.tolist()) for k in curve}
    for level in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        expected = reference.smallest_count(curve, selections, level, least, most)
        assert count_at(one, level, least, most) == expected


@given(st.integers(0, 1000), st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_higher_level_never_needs_fewer_tokens(seed, one_level, other_level):
    one = weighed(image(((4, 5),), seed=seed))
    low, high = sorted((one_level, other_level))
    assert count_at(one, low) <= count_at(one, high)


@given(st.integers(0, 1000), st.floats(0.05, 1), st.data())
def test_bounds_are_kept_and_the_level_is_reached_below_the_upper_one(seed, level, data):
    one = weighed(image(((4, 5),), seed=seed))
    most = data.draw(st.integers(1, one.size))
    least = data.draw(st.integers(1, most))
    found = smallest_selection(one, level, least, most)
    count = len(found.kept)
    assert least <= count <= most
    assert count == most or float(found.coverage) >= level


@pytest.mark.parametrize("name", STRUCTURED)
def test_the_tokens_are_those_of_a_fixed_budget_of_that_count(name):
    made = STRUCTURED[name]()
    one = weighed(made)
    found = smallest_selection(one, 0.8, 1, one.size)
    pi = (3 * torch.rand(made.size, generator=generator(9))).softmax(0)
    fixed, _ = initial_selection(
        made.attention,
        made.keys,
        made.embeddings,
        made.grid,
        len(found.kept),
        CONFIG,
        InstructionEvidence(pi, True, 0.3),
    )
    assert torch.equal(found.kept, fixed.kept)
    assert torch.equal(found.coverage, fixed.coverage)


def test_full_coverage_takes_the_upper_bound():
    assert count_at(weighed(image(((6, 6),))), 1.0, 2, 12) == 12


def test_an_image_of_equal_tokens_needs_the_lower_bound():
    assert count_at(weighed(STRUCTURED["constant features"]()), 0.97, 3, 12) == 3


def test_simple_images_need_fewer_tokens_than_crowded_ones():
    simple, crowded = STRUCTURED["dominant cluster"](), image(((6, 6),))
    assert count_at(weighed(simple), 0.9) < count_at(weighed(crowded), 0.9)


@pytest.mark.parametrize("name", STRUCTURED)
def test_coverage_is_the_share_of_the_objective_and_all_tokens_cover_everything(name):
    one = weighed(STRUCTURED[name]())
    omega, everything = one.omega(1), torch.arange(one.size)
    assert float(coverage_share(one.affinity, omega, covered_by(one.affinity, everything))) == pytest.approx(
        1, abs=1e-5
    )
    half = everything[::2]
    expected = objective(array(one.affinity), array(omega), half.tolist())
    expected /= objective(array(one.affinity), array(omega), everything.tolist())
    assert float(coverage_share(one.affinity, omega, covered_by(one.affinity, half))) == pytest.approx(
        expected, abs=1e-5
    )


def test_an_image_without_features_misses_nothing():
    assert float(coverage_share(torch.zeros(4, 4), torch.full((4,), 0.25), torch.zeros(4))) == 1


def test_the_accelerator_path_needs_as_many_tokens(monkeypatch):
    one = weighed(image(((6, 6),)))
    found = []
    for dense in (False, True):
        monkeypatch.setattr(greedy, "DENSE", dense)
        found.append(count_at(one, 0.8))
    assert found[0] == found[1]


@pytest.mark.parametrize("least, most", [(0, 4), (5, 4)])
def test_impossible_bounds_are_refused(least, most):
    with pytest.raises(CovistError, match=r"smallest_prefix: 1 <= .* must hold"):
        smallest_selection(weighed(image()), 0.9, least, most)
