import pytest

from covist.eval.suite import load_suite, scene_seeds
from covist.tiny import FAMILIES
from covist.tiny.scenes import TRAIN_SEEDS, VALIDATION_SEEDS


def test_scenes_has_enough_images_and_questions_in_every_family():
    items = load_suite("scenes").items()
    families = [question.family for item in items for question in item.questions]
    assert len(items) >= 300
    assert len(families) >= 2000
    assert len(FAMILIES) == 8
    assert min(families.count(family) for family in FAMILIES) >= 250


def test_scenes_are_unseen_in_training():
    seeds = set(scene_seeds())
    assert len(seeds) == load_suite("scenes").size
    assert seeds.isdisjoint(TRAIN_SEEDS)
    assert seeds.isdisjoint(VALIDATION_SEEDS)


def test_the_suite_is_the_one_that_published_figures_were_measured_on():
    # A new value here means that every figure in docs/results.md and the model card has to be measured again.
    assert load_suite("scenes").fingerprint() == "acbecf8d"


def test_an_item_is_the_same_whenever_it_is_made():
    suite = load_suite("scenes")
    first, second = suite.item(5), suite.item(5)
    assert first.questions == second.questions
    assert first.image.tobytes() == second.image.tobytes()
    assert suite.item(6).image.tobytes() != first.image.tobytes()


def test_limit_takes_the_first_items():
    suite = load_suite("scenes")
    assert [item.number for item in suite.items(3)] == [0, 1, 2]
    assert len(suite.items(10**6)) == suite.size


@pytest.mark.parametrize("limit", [0, -1, 2.5, True])
def test_a_limit_must_be_a_positive_number(limit):
    with pytest.raises(ValueError, match="limit must be a positive number of images"):
        load_suite("scenes").items(limit)


def test_an_unknown_suite_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown suite 'mme'; choose one of scenes"):
        load_suite("mme")
