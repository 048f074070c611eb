"""The race on synthetic answers whose truth is known: what it chooses, what it saves, and its bound."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from covist.eval.racing import EARLY, ERROR, BudgetTest, Sample, Verdict, race, smallest_passing

LADDER = (0.999, 0.995, 0.99, 0.98, 0.96, 0.93, 0.88, 0.80)
"""True retention by rung, from the largest budget down."""


class Synthetic:
    """Answers to `families` questions about each of `items` items, right with known probability.

    Whether an answer is lost depends on how hard it is, the same for all rungs, so that rungs are as alike as budgets
    are.
    """

    def __init__(self, seed, items=160, families=8, vanilla=0.97, ladder=LADDER):
        rng = np.random.default_rng(seed)
        self.asked = np.ones((items, families))
        self.vanilla = (rng.random((items, families)) < vanilla).astype(float)
        hardness = rng.random((items, families))
        self.right = [self.vanilla * (hardness < truth) for truth in ladder]
        self.looked: dict[int, int] = {}

    def test(self, keep):
        return BudgetTest(keep, self.asked, draws=999)

    def sample(self, rung, count):
        self.looked[rung] = max(self.looked.get(rung, 0), count)
        return Sample(self.right[rung][:count], self.vanilla[:count])

    def choose(self, keep, early=True):
        chosen = smallest_passing(race(range(len(self.right)), self.test(keep), self.sample, early))
        return None if chosen is None else chosen.rung

    @property
    def cost(self):
        """Answers that were needed, as a share of all rungs and the uncompressed model on all items."""
        needed = sum(self.looked.values()) + max(self.looked.values())
        return needed / ((1 + len(self.right)) * len(self.asked))


@cache
def races(keep):
    """By seed: the choice of the race, that of all answers, and the cost of the race."""
    found = []
    for seed in range(10):
        raced, waited = Synthetic(seed), Synthetic(seed)
        found.append((raced.choose(keep), waited.choose(keep, early=False), raced.cost))
    return found


@pytest.mark.parametrize("keep", [90.0, 95.0, 97.0])
def test_the_race_chooses_what_all_answers_would_choose_at_less_than_their_cost(keep):
    assert sum(raced == waited for raced, waited, _ in races(keep)) >= 9
    assert np.mean([cost for *_, cost in races(keep)]) <= 0.75


def test_a_budget_that_keeps_clearly_enough_is_found():
    """93 % of every family, or at least 96 %."""
    assert all(raced in (4, 5) for raced, *_ in races(90.0))


def test_the_choice_ends_at_the_first_rung_that_fails():
    """Retention need not rise with the budget: what passes below a failure is not looked at."""
    synthetic = Synthetic(0, ladder=(0.999, 0.5, 0.999))
    assert synthetic.choose(95.0) == 0
    assert set(synthetic.looked) == {0, 1}


def test_without_a_budget_that_passes_there_is_no_choice():
    assert Synthetic(0, ladder=(0.8, 0.7)).choose(98.0) is None


def test_few_items_cannot_show_much_even_without_a_loss_and_are_not_all_answered():
    synthetic = Synthetic(0, items=30, families=1, vanilla=1.0, ladder=(1.0,))
    test, whole = synthetic.test(99.0), synthetic.sample(0, 30)
    assert whole.retention == 100 and test.judge(whole) is Verdict.FAILS
    assert test.best_lower_bound(whole) == pytest.approx(89.8, abs=0.3)
    assert test.best_lower_bound(whole) == test.interval(whole)[0]
    assert test.judge(synthetic.sample(0, 16)) is Verdict.FAILS


DESIGNS = {
    "one question each": np.ones((30, 1)),
    "eight families about each": np.ones((30, 8)),
    "one to four questions each": np.arange(40).reshape(40, 1) % 4 + 1,
    "families apart": np.repeat(np.eye(3), (60, 20, 5), axis=0),
    "families mixed": np.array([[1, 2, 0], [0, 1, 1], [3, 0, 1], [1, 1, 1]] * 10),
}
"""Questions by item and family."""


@pytest.mark.parametrize("asked", DESIGNS.values(), ids=DESIGNS)
def test_the_most_that_data_can_show_is_the_bound_of_answers_without_a_loss(asked):
    test = BudgetTest(99.0, asked, draws=99_999)
    assert test.best_bound == pytest.approx(test.interval(Sample(test.asked, test.asked))[0], abs=0.3)


@pytest.mark.parametrize("items", [1, 12, 30, 321])
def test_the_most_that_single_questions_can_show_is_exact(items):
    """Clopper and Pearson without a loss: the share that is all right with a chance of 4 %."""
    assert BudgetTest(99.0, np.ones((items, 1))).best_bound == pytest.approx(100 * 0.04 ** (1 / items))


@pytest.mark.parametrize("asked", DESIGNS.values(), ids=DESIGNS)
def test_no_answers_show_more_than_the_most_that_data_can_show(asked):
    """Whatever the uncompressed model answers, whatever compression loses, and at every look."""
    test, rng = BudgetTest(99.0, asked, draws=9999), np.random.default_rng(1)
    for share in (1.0, 0.97, 0.8, 0.3):
        full = rng.binomial(test.asked.astype(int), share).astype(float)
        for right in (full, rng.binomial(full.astype(int), 0.97).astype(float)):
            for look in test.looks:
                low, _ = test.interval(Sample(right[:look], full[:look]))
                assert low <= test.best_bound + 0.5  # the draws of 9,999


@pytest.mark.parametrize("asked", DESIGNS.values(), ids=DESIGNS)
def test_the_number_of_items_that_is_asked_for_suffices_just_about(asked):
    keep, few = 99.0, len(asked)
    needed = BudgetTest(keep, asked).items_needed
    assert needed > few
    of_this_kind = np.repeat(asked, -(-needed // few), axis=0)
    lacking = 100 - BudgetTest(keep, of_this_kind).best_bound
    assert lacking < 1.15 * (100 - keep)
    assert BudgetTest(keep, np.repeat(asked, max(1, needed // few // 2), axis=0)).best_bound < keep


@pytest.mark.parametrize("lost", [0, 1, 5, 40])
def test_the_bound_on_lost_answers_is_that_of_clopper_and_pearson(lost):
    """With one question per item and the uncompressed model always right, losses are counts."""
    items = 200
    full = np.ones((items, 1))
    right = full.copy()
    right[:lost] = 0
    test = BudgetTest(95.0, full, draws=99_999)
    low, high = test.interval(Sample(right, full))
    assert low == pytest.approx(100 * beta.ppf(test.final_error, items - lost, lost + 1), abs=0.1)
    exact = 100 * beta.ppf(1 - test.final_error, items - lost + 1, lost) if lost else 100
    assert high == pytest.approx(exact, abs=0.1)


def test_the_family_with_the_heaviest_answers_limits_what_can_be_shown():
    """Five questions of a family that weighs a half: without a loss, they show what five answers show."""
    asked = np.repeat(np.eye(2), (395, 5), axis=0)
    test, same = (BudgetTest(90.0, one, draws=99_999) for one in (asked, np.ones((5, 1))))
    both, alone = (one.interval(Sample(one.asked, one.asked))[0] for one in (test, same))
    assert both == pytest.approx((100 + alone) / 2, abs=0.3)
    assert test.judge(Sample(asked, asked)) is Verdict.FAILS


def test_a_family_that_has_not_been_seen_is_not_left_out():
    """The first 36 items are of one family, and the other may keep nothing, or everything."""
    asked = np.repeat(np.eye(2), (380, 20), axis=0)
    test, first = BudgetTest(80.0, asked), Sample(asked[:36], asked[:36])
    low, high = test.interval(first)
    assert low <= 50 and high == 100 and test.judge(first) is Verdict.OPEN


def test_a_family_in_which_nothing_was_right_without_compression_counts_as_lost():
    asked = np.repeat(np.eye(2), (200, 50), axis=0)
    full = asked * [1, 0]
    test, whole = BudgetTest(80.0, asked), Sample(full, full)
    assert whole.retention == 100
    assert test.interval(whole)[0] <= 50 and test.judge(whole) is Verdict.FAILS


def test_a_family_without_a_question_does_not_count():
    asked = np.repeat(np.eye(2)[:1], 200, axis=0)
    assert BudgetTest(95.0, asked).judge(Sample(asked, asked)) is Verdict.PASSES


def test_a_family_that_gains_does_not_pay_for_one_that_loses():
    asked = np.repeat(np.eye(2), (300, 300), axis=0)
    full = asked.copy()
    full[150:300] = 0  # half right without compression, all right with it: 200 %
    right = asked.copy()
    right[300:375] = 0  # a quarter lost
    test, whole = BudgetTest(90.0, asked), Sample(right, full)
    assert whole.retention > 130 and test.judge(whole) is Verdict.FAILS
    assert test.interval(whole)[1] < 95


def test_retention_is_zero_where_the_uncompressed_model_is_never_right():
    nothing = np.zeros((20, 2))
    assert Sample(nothing, nothing).retention == 0


@given(st.integers(1, 3000))
def test_looks_grow_to_everything(items):
    looks = BudgetTest(99.0, np.ones((items, 1))).looks
    assert looks[-1] == items and looks == sorted(set(looks)) and len(looks) < 20


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([90.0, 95.0, 98.0]))
def test_the_verdict_on_all_items_is_final_and_that_of_the_interval(seed, keep):
    synthetic = Synthetic(seed, items=60)
    test = synthetic.test(keep)
    for rung in range(len(LADDER)):
        whole = synthetic.sample(rung, 60)
        passes = test.interval(whole)[0] >= keep
        assert test.judge(whole) is (Verdict.PASSES if passes else Verdict.FAILS)


def test_the_errors_of_all_looks_add_up_to_what_is_promised():
    test = BudgetTest(99.0, np.ones((100, 1)))
    assert test.final_error + EARLY * ERROR == pytest.approx(ERROR)
