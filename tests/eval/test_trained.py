"""The suite on the embedded weights: it tells a good model from a blind one, and a good method from a bad one."""

import pytest

from covist.eval import evaluate


@pytest.fixture(scope="module")
def results():
    return evaluate("random:positions=keep,covist-fixed", "64", limit=12)


def test_vanilla_answers_every_family(results):
    vanilla = results.scores[0]
    assert vanilla.accuracy >= 95
    assert min(vanilla.families.values()) >= 80  # one question of twelve is 8 points


def test_random_tokens_lose_ten_points_and_more_than_the_interval_is_wide(results):
    random = results.scores[1]
    assert random.retention <= 90
    assert random.retention_interval[1] < 95


def test_chosen_tokens_are_clearly_better_than_random_ones(results):
    gap = results.difference("covist-fixed", "random:positions=keep", 64)
    assert gap.retention > 10 and gap.is_clear
