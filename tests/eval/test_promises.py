"""What the statistics promise, on simulated answers whose truth is known (`benchmarks/promises.py`).

Limits are those that a true 5 % exceeds once in a thousand simulations; the simulations are seeded.
"""

import numpy as np
import pytest
from promises import ANSWERS, BELOW, DESIGNS, Answers, Design, Trial, covered, false_alarm
from scipy.stats import binom

from covist.eval.statistics import LEVEL

ERROR = 1 - LEVEL
UNBALANCED = (Design((380, 20)), Design((390, 10)), Design((395, 5)))
OTHERS = (Design((200, 200)), Design((60,)), Design((12,)), Design((160,), together=8))


def most(runs, share=ERROR):
    """The largest share of the runs that chance explains."""
    return binom.ppf(0.999, runs, share) / runs


@pytest.mark.parametrize("keep", [80.0, 90.0])
@pytest.mark.parametrize("design", [*UNBALANCED, *OTHERS], ids=str)
def test_a_budget_that_keeps_too_little_is_accepted_no_more_often_than_promised(design, keep):
    where = "everywhere" if design.together else "smallest"
    trial = Trial(design, keep, 100 - keep + BELOW, where)
    assert trial.accepted(100) <= most(100)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["smallest", "everywhere"])
@pytest.mark.parametrize("keep", [80.0, 90.0, 95.0, 97.5])
@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_no_data_make_a_false_acceptance_more_likely(design, keep, where):
    accepted = Trial(design, keep, 100 - keep + BELOW, where).accepted(1000)
    assert np.isnan(accepted) or accepted <= most(1000)


def test_a_budget_that_keeps_enough_is_accepted():
    """Half of the loss that is allowed, and none: the promise must not be kept by refusing everything."""
    assert Trial(Design((200, 200)), 90.0, 5.0, "everywhere").accepted(50) >= 0.8
    assert Trial(Design((380, 20)), 80.0, 4.0, "smallest").accepted(50) >= 0.6
    for design in (Design((200, 200)), Design((380, 20))):
        assert Trial(design, 90.0, 0.0, "everywhere").accepted(5) == 1


@pytest.mark.parametrize("images", [10, 30])
@pytest.mark.parametrize("answers", [Answers(1, 0.03), Answers(8, 0.1), Answers(8, 0.01)], ids=str)
def test_intervals_hold_the_truth_as_often_as_they_say(answers, images):
    for figure, share in covered(answers, images, 100).items():
        assert 1 - share <= most(100), figure


@pytest.mark.slow
@pytest.mark.parametrize("images", [10, 30, 100])
@pytest.mark.parametrize("answers", ANSWERS, ids=str)
def test_intervals_hold_the_truth_about_as_often_as_they_say_for_all_kinds_of_answers(answers, images):
    """Images that are lost whole and rarely are the exception: a sample often holds none of them."""
    allowed = 0.15 if answers.alike > 0.5 else 0.07
    for figure, share in covered(answers, images, 500).items():
        assert 1 - share <= most(500, allowed), figure


@pytest.mark.parametrize("images", [6, 8, 12, 24])
def test_methods_that_are_alike_differ_clearly_no_more_often_than_promised(images):
    """Also with fewer images than the floor."""
    clear, holm = false_alarm(Answers(8, 0.1), images, 50)
    assert clear <= most(250) and holm <= most(50)


@pytest.mark.slow
@pytest.mark.parametrize("images", [6, 8, 12, 24, 30, 100])
@pytest.mark.parametrize("answers", [Answers(1, 0.3), Answers(8, 0.1), Answers(4, 0.1, rare=True)], ids=str)
def test_no_kind_of_answers_makes_a_false_difference_more_likely(answers, images):
    clear, holm = false_alarm(answers, images, 200)
    assert clear <= most(1000) and holm <= most(200)
