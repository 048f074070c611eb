"""The suite on the embedded weights: it tells a good model from a blind one, and a good method from a bad one."""

import pytest

from covist.eval import evaluate


@pytest.fixture(scope="module")
def results():
    return evaluate("random:positions=keep,covist-fixed", "64", limit=8)


def test_vanilla_answers_every_family(results):
    vanilla = results.scores[0]
    assert vanilla.accuracy >= 95
    assert min(vanilla.families.values()) >= 80


def test_random_tokens_lose_ten_points_and_more_than_the_interval_is_wide(results):
    random = results.scores[1]
    assert random.retention <= 90
    assert random.retention_interval[1] < 95


def test_chosen_tokens_are_better_than_random_ones(results):
    gap = results.difference("covist-fixed", "random:positions=keep", 64)
    assert gap.retention > 10 and gap.p <= 0.05


@pytest.fixture(scope="module")
def hd_results():
    return evaluate("random", "11.1%", suite="scenes-hd", limit=3)


def test_the_second_bed_answers_its_suite_by_default(hd_results):
    vanilla = hd_results.scores[0]
    assert vanilla.mean_tokens >= 1200
    assert vanilla.accuracy >= 85  # 90 and more on the whole suite


def test_a_ninth_of_the_tokens_at_random_loses_fifteen_points_on_the_second_bed(hd_results):
    vanilla, random = hd_results.scores
    assert random.accuracy <= vanilla.accuracy - 15
