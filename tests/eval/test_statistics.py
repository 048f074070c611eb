import numpy as np
import pytest
from scipy.stats import beta

from covist.eval import statistics
from covist.eval.statistics import Tally, accuracy, contributions, difference, family_scores, retention

FAMILIES = 3


def random_tally(rng, images=12, skill=0.7):
    asked = rng.integers(0, 3, (images, FAMILIES))
    return Tally(rng.binomial(asked, skill), asked)


def literal_scores(tally):
    """Percent right per family, counted one by one."""
    scores = []
    for family in range(FAMILIES):
        right = asked = 0
        for image in range(len(tally.right)):
            right += int(tally.right[image, family])
            asked += int(tally.asked[image, family])
        scores.append(100 * right / asked if asked else None)
    return scores


def literal_retention(tally, vanilla):
    pairs = zip(literal_scores(tally), literal_scores(vanilla), strict=True)
    ratios = [score / full for score, full in pairs if score is not None and full]
    return 100 * sum(ratios) / len(ratios) if ratios else float("nan")


@pytest.mark.parametrize("seed", range(5))
def test_figures_agree_with_literal_ones(seed):
    rng = np.random.default_rng(seed)
    vanilla = random_tally(rng, skill=0.9)
    one, other = (Tally(rng.binomial(vanilla.asked, skill), vanilla.asked) for skill in (0.6, 0.7))
    known = [score for score in literal_scores(one) if score is not None]
    assert family_scores(one) == pytest.approx(
        [np.nan if one is None else one for one in literal_scores(one)], nan_ok=True
    )
    assert accuracy(one).value == pytest.approx(sum(known) / len(known))
    assert retention(one, vanilla).value == pytest.approx(literal_retention(one, vanilla))
    apart = literal_retention(one, vanilla) - literal_retention(other, vanilla)
    assert difference(one, other, vanilla).value == pytest.approx(apart)
    assert contributions(one, other, vanilla).sum() == pytest.approx(apart)


def test_retention_is_the_mean_of_the_ratios_not_the_ratio_of_the_means():
    asked = np.full((1, 2), 10)
    tally, vanilla = Tally(np.array([[5, 8]]), asked), Tally(np.array([[10, 4]]), asked)
    assert retention(tally, vanilla).value == pytest.approx(100 * (0.5 + 2.0) / 2)


def test_a_family_that_vanilla_never_gets_right_is_left_out():
    asked = np.full((1, 2), 10)
    tally, vanilla = Tally(np.array([[5, 8]]), asked), Tally(np.array([[10, 0]]), asked)
    assert retention(tally, vanilla).value == pytest.approx(50)


def test_a_comparison_with_itself_has_an_empty_interval():
    tally = random_tally(np.random.default_rng(2), images=40)
    assert retention(tally, tally) == (100, (100, 100))
    assert difference(tally, tally, tally) == (0, (0, 0))


@pytest.mark.parametrize("lost", [0, 1, 20])
def test_with_one_question_per_image_the_interval_is_that_of_clopper_and_pearson_a_little_wider(lost, monkeypatch):
    """Wider by what Student's t adds: 0.5 % with 400 images."""
    monkeypatch.setattr(statistics, "DRAWS", 20_000)
    images, asked = 400, np.ones((400, 1))
    right = asked.copy()
    right[:lost] = 0
    exact = beta.ppf(0.025, images - lost, lost + 1), beta.ppf(0.975, images - lost + 1, lost) if lost else 1.0
    for found in (accuracy(Tally(right, asked)), retention(Tally(right, asked), Tally(asked, asked))):
        assert found.value == 100 * (1 - lost / images)
        assert found.interval == pytest.approx([100 * end for end in exact], abs=0.15)


def test_no_loss_in_the_sample_is_not_certainty():
    asked = np.ones((100, 8))
    vanilla, tally = Tally(asked, asked), Tally(asked.copy(), asked)
    low, high = retention(tally, vanilla).interval
    assert 99 < low < 100 == high
    low, high = difference(tally, Tally(asked.copy(), asked), vanilla).interval
    assert -1 < low < 0 < high < 1


def test_a_family_of_few_questions_widens_the_interval():
    asked = np.repeat(np.eye(2), (395, 5), axis=0)
    low, _ = retention(Tally(asked.copy(), asked), Tally(asked, asked)).interval
    assert low < 80


def test_questions_about_one_image_count_as_correlated():
    """Ten identical answers per image leave the interval as wide as one answer per image does."""
    rng = np.random.default_rng(4)
    right = rng.binomial(1, 0.5, (100, 1))
    one, ten = Tally(right, np.ones_like(right)), Tally(10 * right, 10 * np.ones_like(right))
    (_, narrow), (_, wide) = accuracy(one), accuracy(ten)
    assert narrow == pytest.approx(wide)


def test_few_images_widen_the_interval_beyond_the_binomial_error():
    rng = np.random.default_rng(3)
    for images, least, most in ((10, 1.1, 2.0), (400, 0.95, 1.15)):
        asked = np.ones((images, 1))
        value, (low, high) = accuracy(
            Tally(rng.permutation(asked * (np.arange(images)[:, None] < 0.8 * images)), asked)
        )
        error = 100 * np.sqrt(value / 100 * (1 - value / 100) / images)
        assert least < (high - low) / 2 / (1.96 * error) < most


@pytest.mark.parametrize("images", [1, 2])
def test_one_or_two_images_have_an_interval(images):
    asked = np.ones((images, 2))
    low, high = accuracy(Tally(asked * [1, 0], asked)).interval
    assert low < 50 < high


def test_a_family_without_questions_has_no_score():
    nothing = Tally(np.zeros((3, 2), dtype=int), np.zeros((3, 2), dtype=int))
    for found in (accuracy(nothing), retention(Tally(*[np.zeros((3, 2))] * 2), nothing)):
        assert np.isnan([found.value, *found.interval]).all()
    other = Tally(np.zeros((3, 2)), np.zeros((3, 2)))
    assert np.isnan(contributions(nothing, other, nothing)).all()
