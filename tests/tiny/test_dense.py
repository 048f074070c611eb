"""Dense counting: crowded scenes, and questions that need every member of a group to be seen."""

from collections import Counter

import pytest

from covist.eval.suite import CROWDED_SEEDS
from covist.tiny import FAMILIES, dense_questions_for, sample_dense_scene
from covist.tiny.dense import DENSE_FAMILY
from covist.tiny.scenes import COLORS, MOST_OBJECTS, SHAPES, Scene, Thing

SCENES = [sample_dense_scene(seed) for seed in CROWDED_SEEDS[:60]]
PLURALS = {"crosses": "cross"}


def counted(scene: Scene, question: str) -> int:
    """The answer, found by reading the question and going through the things."""
    words = question.removeprefix("how many ").removesuffix(" are there?").split()
    if words[-1] == "objects":
        return sum(thing.kind == "object" and thing.color == words[0] for thing in scene.things)
    shape = PLURALS.get(words[0], words[0].removesuffix("s"))
    assert shape in SHAPES
    return sum(thing.kind == "object" and thing.shape == shape for thing in scene.things)


def test_scenes_are_more_crowded_than_training_ever_showed():
    objects = [len(scene.objects) for scene in SCENES]
    assert sum(objects) / len(objects) > MOST_OBJECTS + 1


def test_every_answer_follows_from_the_scene():
    for scene in SCENES:
        for item in dense_questions_for(scene):
            assert item.family == DENSE_FAMILY
            assert item.answer == str(counted(scene, item.question)) == str(len(item.about))


def test_every_group_of_two_to_four_is_asked_for_once():
    for scene in SCENES:
        sizes = Counter(thing.color for thing in scene.objects) + Counter(thing.shape for thing in scene.objects)
        questions = [item.question for item in dense_questions_for(scene)]
        assert len(questions) == len(set(questions)) == sum(2 <= size <= 4 for size in sizes.values())


def test_no_answer_can_be_guessed():
    answers = Counter(item.answer for scene in SCENES for item in dense_questions_for(scene))
    assert set(answers) == {"2", "3", "4"}
    assert max(answers.values()) / answers.total() < 0.5


def test_decoys_are_never_counted():
    decoys = [Thing("decoy", 20 * n, 20, color="grey", shape="ring", size="small") for n in range(3)]
    pair = [Thing("object", 20 * n, 60, color="red", shape=shape, size="large") for n, shape in enumerate(SHAPES[:2])]
    (item,) = dense_questions_for(Scene(0, (*decoys, *pair)))
    assert (item.question, item.answer) == ("how many red objects are there?", "2")


@pytest.mark.parametrize("colors", [list(COLORS)[:1] * 5, list(COLORS)[:1]])
def test_larger_groups_and_single_objects_are_not_asked_for(colors):
    things = tuple(Thing("object", 15 * n, 60, color, SHAPES[0], "small") for n, color in enumerate(colors))
    assert dense_questions_for(Scene(0, things)) == []


def test_training_does_not_know_the_family():
    assert DENSE_FAMILY not in FAMILIES
