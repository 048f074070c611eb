"""The race on synthetic answers whose truth is known: what it promises, what it saves, and its formulas."""

from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covist.eval.racing import EARLY, ERROR, BudgetTest, Loss, Verdict, race, smallest_passing
from covist.eval.statistics import Bootstrap, Tally

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

    def loss(self, rung, count):
        self.looked[rung] = max(self.looked.get(rung, 0), count)
        asked = self.asked[:count]
        return Loss.of(Tally(self.right[rung][:count], asked), Tally(self.vanilla[:count], asked))

    def choose(self, test, early=True):
        chosen = smallest_passing(race(range(len(self.right)), test, self.loss, early))
        return None if chosen is None else chosen.rung

    @property
    def cost(self):
        """Answers that were needed, as a share of all rungs and the uncompressed model on all items."""
        needed = sum(self.looked.values()) + max(self.looked.values())
        return needed / ((1 + len(self.right)) * len(self.asked))


@pytest.mark.parametrize("keep", [95.0, 97.5])
def test_the_race_chooses_what_all_answers_would_choose_at_half_the_cost(keep):
    agreed, costs = 0, []
    for seed in range(100):
        raced, waited = Synthetic(seed), Synthetic(seed)
        test = BudgetTest(keep, 160)
        agreed += raced.choose(test) == waited.choose(test, early=False)
        costs.append(raced.cost)
    assert agreed >= 95
    assert np.mean(costs) <= 0.5


@pytest.mark.parametrize(("keep", "vanilla"), [(98.01, 0.97), (96.01, 0.9), (93.01, 1.0)])
def test_a_budget_that_keeps_too_little_is_accepted_no_more_often_than_promised(keep, vanilla):
    """The first rung below `keep` lies a hair below it, which is where a test errs most."""
    trials = 400
    wrong = 0
    for seed in range(trials):
        chosen = Synthetic(1000 + seed, items=120, vanilla=vanilla).choose(BudgetTest(keep, 120))
        wrong += chosen is not None and 100 * LADDER[chosen] < keep
    assert wrong / trials <= ERROR + 2 * sqrt(ERROR * (1 - ERROR) / trials)


def test_a_budget_that_keeps_clearly_enough_is_found():
    assert sum(Synthetic(seed).choose(BudgetTest(90.0, 160)) == 5 for seed in range(40)) >= 36


def test_the_choice_ends_at_the_first_rung_that_fails():
    """Retention need not rise with the budget: what passes below a failure is not looked at."""
    synthetic = Synthetic(0, ladder=(0.999, 0.5, 0.999))
    assert synthetic.choose(BudgetTest(95.0, 160)) == 0
    assert set(synthetic.looked) == {0, 1}


def test_without_a_budget_that_passes_there_is_no_choice():
    assert Synthetic(0, ladder=(0.8, 0.7)).choose(BudgetTest(99.0, 160)) is None


def test_few_items_cannot_show_much_even_without_a_loss():
    synthetic, test = Synthetic(0, items=30, families=1, vanilla=1.0, ladder=(1.0,)), BudgetTest(99.0, 30)
    loss = synthetic.loss(0, 30)
    assert loss.retention == 100 and test.judge(loss) is Verdict.FAILS
    assert 85 < test.best_lower_bound(loss) < 95
    assert test.best_lower_bound(loss) == loss.interval(test.final_error)[0]


@given(st.integers(0, 40), st.integers(60, 400))
def test_the_bound_on_lost_answers_is_wilsons(lost, items):
    """With one question per item and the uncompressed model always right, losses are counts."""
    right = np.ones((items, 1))
    right[:lost] = 0
    loss = Loss.of(Tally(right, np.ones_like(right)), Tally(np.ones_like(right), np.ones_like(right)))
    z = NormalDist().inv_cdf(0.95)
    count = items * lost * (items - lost) / items / (items - 1)  # the variance of a count
    expected = lost + z**2 / 2 + z * sqrt(count + z**2 / 4)
    assert loss.interval(0.05)[0] == pytest.approx(100 - 100 * expected / items)
    assert loss.retention == pytest.approx(100 * (1 - lost / items))


@pytest.mark.parametrize("lost", [0, 1, 2, 5, 10])
def test_the_bound_covers_rare_losses_about_as_often_as_it_says(lost):
    """The exact upper end for a count: the rate at which so few losses have a probability of 5 %."""
    items, z = 500, NormalDist().inv_cdf(0.95)
    bound = (lost + z**2 / 2 + z * sqrt(lost + z**2 / 4)) / items
    term = chance = (1 - bound) ** items
    for count in range(1, lost + 1):
        term *= (items - count + 1) / count * bound / (1 - bound)
        chance += term
    assert 0.03 < chance < 0.075


def test_the_variance_is_that_of_the_bootstrap():
    rng = np.random.default_rng(3)
    asked = rng.integers(0, 3, (300, 4))
    vanilla = Tally(rng.binomial(asked, 0.9).astype(float), asked)
    tally = Tally(rng.binomial(vanilla.right.astype(int), 0.95).astype(float), asked)
    loss = Loss.of(tally, vanilla)
    draws = Bootstrap(300, seed=0).retention(tally, vanilla)
    assert loss.retention == pytest.approx(draws[0])
    assert sqrt(loss.variance) / 300 == pytest.approx(np.std(draws[1:]), rel=0.1)


def test_the_unit_is_what_an_average_lost_answer_costs():
    """A family with few questions weighs as much as another, so that its answers are dear, but seldom the lost ones."""
    asked = np.stack([np.ones(200), np.ones(200), (np.arange(200) < 10).astype(float)], axis=1)
    vanilla = Tally(asked, asked)
    whole, costs = Loss.of(vanilla, vanilla), []
    for item, family in zip(*np.nonzero(asked), strict=True):
        right = asked.copy()
        right[item, family] = 0
        costs.append(Loss.of(Tally(right, asked), vanilla).total)
    assert whole.unit == pytest.approx(np.mean(costs))


def test_what_the_uncompressed_model_never_gets_right_keeps_nothing():
    nothing = Tally(np.zeros((20, 2)), np.ones((20, 2)))
    assert Loss.of(nothing, nothing).retention == 0


@given(st.integers(1, 3000))
def test_looks_grow_to_everything(items):
    looks = BudgetTest(99.0, items).looks
    assert looks[-1] == items and looks == sorted(set(looks)) and len(looks) < 20


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([90.0, 95.0, 98.0]))
def test_the_verdict_on_all_items_is_final(seed, keep):
    synthetic, test = Synthetic(seed, items=60), BudgetTest(keep, 60)
    for rung in range(len(LADDER)):
        loss = synthetic.loss(rung, 60)
        passes = loss.interval(test.final_error)[0] >= keep
        assert test.judge(loss) is (Verdict.PASSES if passes else Verdict.FAILS)


def test_what_is_spent_early_is_missing_at_the_end():
    test = BudgetTest(99.0, 100)
    assert test.final_error + EARLY * ERROR == pytest.approx(ERROR)
