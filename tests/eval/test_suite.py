import pytest

from covist.eval.suite import HD_SCENES, SCENES, load_suite, scene_seeds
from covist.tiny import FAMILIES
from covist.tiny.hd import HD_FAMILIES
from covist.tiny.scenes import TRAIN_SEEDS, VALIDATION_SEEDS


def test_scenes_has_enough_images_and_questions_in_every_family():
    items = load_suite("scenes").items()
    families = [question.family for item in items for question in item.questions]
    assert len(items) >= 300
    assert len(families) >= 2000
    assert len(FAMILIES) == 8
    assert min(families.count(family) for family in FAMILIES) >= 250


def test_scenes_hd_asks_eight_families_of_every_image():
    items = load_suite("scenes-hd").items()
    families = [question.family for item in items for question in item.questions]
    assert len(items) == HD_SCENES
    assert min(families.count(family) for family in HD_FAMILIES) >= 0.95 * HD_SCENES
    assert {item.image.size for item in items[:4]} == {(128, 128)}


@pytest.mark.parametrize(("name", "count"), [("scenes", SCENES), ("scenes-hd", HD_SCENES)])
def test_scenes_are_unseen_in_training(name, count):
    seeds = set(scene_seeds(count))
    assert len(seeds) == load_suite(name).size
    assert seeds.isdisjoint(TRAIN_SEEDS)
    assert seeds.isdisjoint(VALIDATION_SEEDS)


def test_the_suite_is_the_one_that_published_figures_were_measured_on():
    # A new value here means that every figure in docs/results.md and the model card has to be measured again.
    assert load_suite("scenes").fingerprint() == "acbecf8d"
    assert load_suite("scenes-hd").fingerprint() == "50a019d3"


@pytest.mark.parametrize("name", ["scenes", "scenes-hd"])
def test_an_item_is_the_same_whenever_it_is_made(name):
    suite = load_suite(name)
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
    with pytest.raises(ValueError, match="unknown suite 'mme'; choose one of scenes, scenes-hd"):
        load_suite("mme")
