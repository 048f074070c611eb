"""The suite on the embedded weights: it tells a good model from a blind one."""

import pytest

from covist.eval import evaluate

CHANCE = 24  # percent, mean over the families of guessing among the answers that fit the question


@pytest.fixture(scope="module")
def results():
    return evaluate("random:positions=keep", "64", limit=12)


def test_vanilla_is_far_above_chance(results):
    vanilla = results.scores[0]
    assert vanilla.accuracy_interval[0] > 3 * CHANCE
    assert min(vanilla.families.values()) > CHANCE


def test_random_tokens_lose_more_than_the_interval_is_wide(results):
    random = results.scores[1]
    assert random.retention_interval[1] < 95
    assert random.accuracy > CHANCE
