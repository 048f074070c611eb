import pytest

from covist.eval.suite import (
    CROWDED,
    CROWDED_EVERY,
    CROWDED_SEEDS,
    FILM_SEEDS,
    HD_SEEDS,
    ORDINARY_SEEDS,
    crowded_scenes,
    load_suite,
)
from covist.tiny import DENSE_FAMILY, FAMILIES, HELD_OUT_SEEDS, questions_for, sample_scene, scene_image
from covist.tiny.films import FILM_FAMILIES
from covist.tiny.hd import HD_FAMILIES


def test_scenes_has_enough_images_and_questions_in_every_family():
    suite = load_suite("scenes")
    families = [question.family for item in suite.items() for question in item.questions]
    assert suite.size == 400
    assert len(families) == 2916
    assert set(families) == set(suite.families) == {*FAMILIES, DENSE_FAMILY}
    assert min(families.count(family) for family in suite.families) >= 250


def test_a_share_of_the_suite_is_crowded_wherever_it_is_cut_off():
    """`--limit` takes the first images: they must not be all of one kind."""
    items = load_suite("scenes").items()
    crowded = [item.number for item in items if {question.family for question in item.questions} == {DENSE_FAMILY}]
    ordinary = [item for item in items if item.number not in crowded]
    assert len(crowded) == CROWDED and crowded == list(range(CROWDED_EVERY - 1, len(items), CROWDED_EVERY))
    assert all(question.family in FAMILIES for item in ordinary for question in item.questions)


def test_the_ordinary_scenes_come_in_order_and_each_once():
    items = [item for item in load_suite("scenes").items(40) if item.questions[0].family != DENSE_FAMILY]
    for item, seed in zip(items, ORDINARY_SEEDS, strict=False):
        assert item.questions == tuple(questions_for(sample_scene(seed)))
    assert len(items) == 32 and items[-1].image.tobytes() == scene_image(sample_scene(ORDINARY_SEEDS[31])).tobytes()


def test_every_item_asks_something():
    for name in ("scenes", "scenes-hd", "films"):
        assert all(item.questions for item in load_suite(name).items())


def test_scenes_hd_asks_eight_families_of_every_image():
    items = load_suite("scenes-hd").items()
    families = [question.family for item in items for question in item.questions]
    assert len(items) == 200
    assert min(families.count(family) for family in HD_FAMILIES) >= 0.95 * len(items)
    assert {item.image.size for item in items[:4]} == {(128, 128)}


@pytest.mark.parametrize("seeds", [ORDINARY_SEEDS, CROWDED_SEEDS, HD_SEEDS, FILM_SEEDS])
def test_scenes_are_unseen_in_training(seeds):
    assert set(seeds) <= set(HELD_OUT_SEEDS)


def test_films_ask_every_family_often_enough():
    items = load_suite("films").items()
    families = [question.family for item in items for question in item.questions]
    assert len(items) == 400 and len(items[0].shown[0].frames) == 16
    assert min(families.count(family) for family in FILM_FAMILIES) >= 100


def test_crowded_scenes_have_seeds_of_their_own():
    seeds = [scene.seed for scene in crowded_scenes()]
    assert len(set(seeds)) == CROWDED and set(seeds) <= set(CROWDED_SEEDS)
    assert set(CROWDED_SEEDS).isdisjoint([*ORDINARY_SEEDS, *HD_SEEDS])


def test_the_suite_is_the_one_that_published_figures_were_measured_on():
    # A new value here means that every figure in docs/results-tables.md, docs/video.md and model cards is out of date.
    assert load_suite("scenes").fingerprint() == "2dcaca65"
    assert load_suite("scenes-hd").fingerprint() == "50a019d3"
    assert load_suite("films").fingerprint() == "7f130d8c"


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


def test_a_half_takes_every_second_item():
    suite = load_suite("scenes")
    assert [item.number for item in suite.items(3, "even")] == [0, 2, 4]
    assert [item.number for item in suite.items(3, "odd")] == [1, 3, 5]
    assert len(suite.items(half="odd")) == suite.size // 2
    with pytest.raises(ValueError, match="half must be even or odd, got 'first'"):
        suite.items(3, "first")


@pytest.mark.parametrize("limit", [0, -1, 2.5, True])
def test_a_limit_must_be_a_positive_number(limit):
    with pytest.raises(ValueError, match="limit must be a positive number of images"):
        load_suite("scenes").items(limit)


def test_an_unknown_suite_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown suite 'mme'; choose one of scenes, scenes-hd"):
        load_suite("mme")
