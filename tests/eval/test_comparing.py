"""When a difference is clear: the sign-flip test and Holm's correction against literal ones and statsmodels'."""

from itertools import product
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from covist.eval.comparing import holm, sign_flip


def literal_holm(p_values, level):
    """Which hypotheses fall, step by step: the smallest p against level / m, the next against level / (m - 1), ..."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    fallen = set()
    for done, place in enumerate(order):
        if p_values[place] * (len(p_values) - done) > level:
            break
        fallen.add(place)
    return fallen


@given(st.lists(st.floats(0, 1), max_size=8), st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_rejects_the_same_hypotheses_as_the_literal_procedure(p_values, level):
    adjusted = holm(p_values)
    assert {place for place, p in enumerate(adjusted) if p <= level} == literal_holm(p_values, level)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))


def test_holm_of_a_textbook_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.slow  # its import alone takes seconds
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(deadline=None)
def test_holm_is_that_of_statsmodels(p_values):
    from statsmodels.stats.multitest import multipletests

    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_missing_p_values_are_neither_counted_nor_corrected():
    found = holm([0.02, nan, 0.04])
    assert found[::2] == pytest.approx([0.04, 0.04]) and isnan(found[1])
    assert holm([]) == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8))
def test_p_is_the_share_of_all_exchanges_that_differ_as_much(moves):
    sums = [
        sum(sign * move for sign, move in zip(signs, moves, strict=True))
        for signs in product((-1, 1), repeat=len(moves))
    ]
    expected = np.mean([abs(one) >= abs(sum(moves)) for one in sums])
    assert sign_flip(np.array(moves, dtype=float)) == pytest.approx(expected)


def test_p_of_many_images_is_that_of_the_normal_distribution():
    moves = np.random.default_rng(0).normal(0.1, 1.0, 400)
    z = moves.sum() / np.sqrt((moves**2).sum())
    assert sign_flip(moves) == pytest.approx(2 * norm.sf(abs(z)), abs=0.01)


@pytest.mark.parametrize("moves", [[], [0.0, 0.0], [0.0, 5.0]])
def test_without_two_images_that_differ_nothing_is_known(moves):
    assert sign_flip(np.array(moves)) == 1


def test_an_unknown_difference_has_no_p_value():
    assert isnan(sign_flip(np.array([1.0, nan])))
