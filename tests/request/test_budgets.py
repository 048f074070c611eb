"""Budgets that a method cannot take literally."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist import available_methods, create_method
from covist.budget import Budget, Count
from covist.request.budgets import Reach, distinct_notes, reach


@pytest.mark.parametrize("budget", [576, 577, 10**6, "999", "100%", 1.0])
@pytest.mark.parametrize("method", ["covist-fixed", "covist-pro", "fastv"])
def test_all_tokens_or_more_leave_the_image_uncompressed(method, budget):
    found = reach(method, Budget.parse(budget), tokens=576, layers=8)
    assert not found.is_compressed and found.is_reached
    assert found.mean == 576
    assert (
        found.note == f"a budget of all tokens or more leaves the image uncompressed (budget {found.asked}, 576 tokens)"
    )


def test_a_method_that_keeps_all_tokens_in_one_of_eight_layers_cannot_reach_64():
    found = reach("fastv", Count(64), tokens=576, layers=8)
    assert not found.is_reached
    assert found.mean == (576 + 7) / 8
    assert found.note == (
        "fastv cannot reach a budget of 64 here: the smallest layer mean it can reach is 72.9 visual tokens"
    )
    assert reach("fastv", Count(73), tokens=576, layers=8).is_reached
    assert reach("fastv", Count(64), tokens=576, layers=32).is_reached


@pytest.mark.parametrize("name", available_methods())
@given(layers=st.integers(1, 40), tokens=st.integers(1, 700), budget=st.integers(1, 800))
def test_a_mean_above_the_budget_is_the_smallest_there_is(name, layers, tokens, budget):
    """So that the note names the right number, and rounding alone is never called unreachable."""
    found = reach(name, Count(budget), tokens, layers)
    assert found.is_reached or found.mean == reach(name, Count(1), tokens, layers).mean > found.budget


def test_a_method_that_keeps_fewer_tokens_than_it_may_says_so():
    found = Reach("cdpruner", 192, 192, 576, mean=135.5)
    assert found.is_reached
    assert found.note == "cdpruner keeps fewer tokens than a budget of 192: a layer mean of 135.5"
    assert Reach("cdpruner", 192, 192, 576, mean=191.5).note is None


def test_ivc_prune_is_judged_by_its_cache():
    """Prefill runs half of the layers on all tokens, and layer 0 keeps them in its cache."""
    found = reach("ivc-prune", Count(64), tokens=576, layers=32)
    assert found.is_reached and abs(found.mean - 64) <= 0.5
    assert create_method("ivc-prune").schedule(32, 64, 576).mean > 300
    shallow = reach("ivc-prune", Count(64), tokens=576, layers=8)
    assert not shallow.is_reached and shallow.mean == (576 + 7) / 8


def test_a_combination_reaches_what_its_base_reaches():
    base, combined = (reach(name, Count(64), tokens=576, layers=8) for name in ("fastv", "fastv+csc"))
    assert (base.mean, base.is_reached) == (combined.mean, combined.is_reached)
    assert create_method("fastv+csc").schedule(8, 64, 576).mean == combined.mean


def test_nothing_is_said_about_an_ordinary_budget_and_nothing_twice():
    usual = reach("covist-pro", Count(64), tokens=576, layers=32)
    assert usual.note is None
    short = reach("fastv", Count(64), tokens=576, layers=8)
    assert distinct_notes([usual, short, usual, short]) == [short.note]


def test_images_that_a_budget_leaves_uncompressed_share_one_note():
    small = [reach("covist-fixed", Count(64), tokens, layers=8) for tokens in (49, 60, 36, 60)]
    assert distinct_notes(small) == [small[1].note] and "60 tokens" in small[1].note
