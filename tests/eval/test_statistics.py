import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.eval.statistics import Bootstrap, Tally, estimate, holm, p_value

FAMILIES = 3


def random_tally(rng, images=12, skill=0.7):
    asked = rng.integers(0, 3, (images, FAMILIES))
    return Tally(rng.binomial(asked, skill), asked)


def literal_scores(tally, drawn):
    """Percent right per family over a list of image numbers, counted one by one."""
    scores = []
    for family in range(FAMILIES):
        right = asked = 0
        for image in drawn:
            right += int(tally.right[image, family])
            asked += int(tally.asked[image, family])
        scores.append(100 * right / asked if asked else None)
    return scores


def literal_retention(tally, vanilla, drawn):
    pairs = zip(literal_scores(tally, drawn), literal_scores(vanilla, drawn), strict=True)
    ratios = [score / full for score, full in pairs if score is not None and full]
    return 100 * sum(ratios) / len(ratios) if ratios else float("nan")


def test_draws_agree_with_a_literal_bootstrap():
    rng = np.random.default_rng(0)
    vanilla = random_tally(rng, skill=0.9)
    tally = Tally(rng.binomial(vanilla.asked, 0.6), vanilla.asked)
    bootstrap = Bootstrap(12, seed=1, draws=50)
    accuracy, retention = bootstrap.accuracy(tally), bootstrap.retention(tally, vanilla)
    for draw, times in enumerate(bootstrap.times):
        drawn = [image for image, count in enumerate(times) for _ in range(count)]
        scores = [score for score in literal_scores(tally, drawn) if score is not None]
        assert accuracy[draw] == pytest.approx(sum(scores) / len(scores))
        assert retention[draw] == pytest.approx(literal_retention(tally, vanilla, drawn), nan_ok=True)


def test_every_draw_has_as_many_images_as_the_sample_and_the_first_is_the_sample():
    times = Bootstrap(30, seed=0, draws=100).times
    assert (times.sum(1) == 30).all()
    assert (times[0] == 1).all()
    assert (times[1:] != 1).any(1).all()


def test_retention_is_the_mean_of_the_ratios_not_the_ratio_of_the_means():
    asked = np.full((1, 2), 10)
    tally, vanilla = Tally(np.array([[5, 8]]), asked), Tally(np.array([[10, 4]]), asked)
    value, _ = estimate(Bootstrap(1, seed=0, draws=5).retention(tally, vanilla))
    assert value == pytest.approx(100 * (0.5 + 2.0) / 2)


def test_a_family_that_vanilla_never_gets_right_is_left_out():
    asked = np.full((1, 2), 10)
    tally, vanilla = Tally(np.array([[5, 8]]), asked), Tally(np.array([[10, 0]]), asked)
    value, _ = estimate(Bootstrap(1, seed=0, draws=5).retention(tally, vanilla))
    assert value == pytest.approx(50)


def test_vanilla_retains_everything_in_every_draw():
    tally = random_tally(np.random.default_rng(2), images=40)
    assert np.allclose(Bootstrap(40, seed=0).retention(tally, tally), 100)


def test_the_interval_has_the_width_of_the_binomial_error():
    rng = np.random.default_rng(3)
    asked = np.ones((400, 1), dtype=int)
    tally = Tally(rng.binomial(asked, 0.8), asked)
    value, (low, high) = estimate(Bootstrap(400, seed=0).accuracy(tally))
    error = 100 * np.sqrt(value / 100 * (1 - value / 100) / 400)
    assert low < value < high
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)


def test_questions_about_one_image_count_as_correlated():
    """Ten identical answers per image leave the interval as wide as one answer per image does."""
    rng = np.random.default_rng(4)
    right = rng.binomial(1, 0.5, (100, 1))
    one, ten = Tally(right, np.ones_like(right)), Tally(10 * right, 10 * np.ones_like(right))
    bootstrap = Bootstrap(100, seed=0)
    assert estimate(bootstrap.accuracy(one)) == estimate(bootstrap.accuracy(ten))


def test_what_was_never_asked_has_no_score():
    nothing = Tally(np.zeros((3, 2), dtype=int), np.zeros((3, 2), dtype=int))
    value, interval = estimate(Bootstrap(3, seed=0, draws=10).accuracy(nothing))
    assert np.isnan([value, *interval]).all()


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
def test_holm_lets_fall_what_the_literal_procedure_does(p_values, level):
    adjusted = holm(p_values)
    assert {place for place, p in enumerate(adjusted) if p <= level} == literal_holm(p_values, level)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))


def test_holm_of_a_textbook_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_differences_that_are_none_are_clear_once_in_twenty_without_the_correction_and_hardly_with_it():
    rng = np.random.default_rng(5)
    alone = together = 0
    for _ in range(300):
        tables = rng.normal(0, 1, (10, 1)) + rng.normal(0, 1, (10, 400))  # [comparisons, draws] around an estimate
        p = [p_value(np.concatenate([row.mean(keepdims=True), row])) for row in tables]
        alone += sum(value <= 0.05 for value in p)
        together += any(value <= 0.05 for value in holm(p))
    assert 0.03 < alone / 3000 < 0.07
    assert together / 300 < 0.08


def test_p_is_that_of_the_estimate_over_the_deviation_of_the_draws():
    draws = np.random.default_rng(6).normal(1.96, 1.0, 200_000)
    assert p_value(np.concatenate([[1.96], draws])) == pytest.approx(0.05, abs=0.001)


def test_draws_that_never_differ_are_certain():
    assert p_value(np.zeros(5)) == 1 and p_value(np.full(5, 2.0)) == 0
