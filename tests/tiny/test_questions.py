"""Questions: every answer is recomputed here from the words of the question and the list of things."""

import re
from collections import Counter

import pytest

from covist.tiny.questions import FAMILIES, questions_for
from covist.tiny.scenes import COLORS, SHAPES, SIZES, Scene, Thing, sample_scene

SCENES = [sample_scene(seed) for seed in range(150)]


def meant(scene: Scene, phrase: str) -> list[Thing]:
    """The coloured objects that fit every word of a phrase such as `small red circles`."""
    found = [thing for thing in scene.things if thing.kind == "object"]
    for word in phrase.split():
        singular = re.sub(r"es$|s$", "", word)
        if word in COLORS:
            found = [thing for thing in found if thing.color == word]
        elif word in SIZES:
            found = [thing for thing in found if thing.size == word]
        elif {word, singular, word[:-1]} & set(SHAPES):
            found = [thing for thing in found if thing.shape in (word, singular, word[:-1])]
        else:
            assert word in ("object", "objects"), word
    return found


def the(scene: Scene, phrase: str) -> Thing:
    (thing,) = meant(scene, phrase)  # a definite reference fits exactly one object
    return thing


def check(scene: Scene, question: str) -> str:
    """The answer, found by reading the question."""
    if match := re.fullmatch(r"is there an? (.+)\?", question):
        return "yes" if meant(scene, match[1]) else "no"
    if match := re.fullmatch(r"what color is the (.+)\?", question):
        return the(scene, match[1]).color
    if match := re.fullmatch(r"what shape is the (.+)\?", question):
        return the(scene, match[1]).shape
    if match := re.fullmatch(r"how many (.+) are there\?", question):
        return str(len(meant(scene, match[1])))
    if match := re.fullmatch(r"is the (.+) left or right of the (.+)\?", question):
        return "left" if the(scene, match[1]).x < the(scene, match[2]).x else "right"
    if match := re.fullmatch(r"is the (.+) above or below the (.+)\?", question):
        return "above" if the(scene, match[1]).y < the(scene, match[2]).y else "below"
    if match := re.fullmatch(r"where is the (.+)\?", question):
        thing = the(scene, match[1])
        return f"{'top' if thing.y < 48 else 'bottom'}-{'left' if thing.x < 48 else 'right'}"
    match = re.fullmatch(r"what is the (first|last) (digit|letter)\?", question)
    assert match, question
    row = sorted((thing for thing in scene.things if thing.kind == match[2]), key=lambda thing: thing.x)
    return row[0 if match[1] == "first" else -1].char


def test_every_answer_follows_from_the_scene():
    for scene in SCENES:
        for item in questions_for(scene, per_family=3):
            assert check(scene, item.question) == item.answer, (scene.seed, item)


def test_every_family_is_asked_in_nearly_every_scene():
    asked = Counter(item.family for scene in SCENES for item in questions_for(scene))
    assert set(asked) == set(FAMILIES)
    assert min(asked.values()) > 0.85 * len(SCENES)


def test_no_answer_can_be_guessed():
    """The most frequent answer of a family is right at most half of the time (plus chance)."""
    answers = {family: Counter() for family in FAMILIES}
    for scene in SCENES:
        for item in questions_for(scene, per_family=3):
            answers[item.family][item.answer] += 1
    for family, counts in answers.items():
        limit = {"existence": 0.6, "relation": 0.4, "quadrant": 0.4, "counting": 0.4}.get(family, 0.3)
        assert max(counts.values()) / counts.total() < limit, (family, counts)


def test_decoys_are_never_counted():
    decoy = Thing("decoy", 20, 20, color="grey", shape="ring", size="small")
    scene = Scene(
        0,
        (
            *(t for t in SCENES[0].things if t.kind != "object"),
            decoy,
            Thing("object", 60, 60, "red", "circle", "large"),
        ),
    )
    found = {q.question: q.answer for seed in range(60) for q in questions_for(scene, seed, {"counting": 1})}
    assert found["how many rings are there?"] == "0"


def test_questions_repeat_with_their_seed_only():
    scene = SCENES[5]
    assert questions_for(scene, 1, 4) == questions_for(scene, 1, 4)
    assert questions_for(scene, 1, 4) != questions_for(scene, 2, 4)


def test_numbers_per_family_are_respected():
    families = [item.family for item in questions_for(SCENES[3], 0, {"digit": 1, "letter": 1})]
    assert families == ["digit", "letter"]
    with pytest.raises(ValueError, match="unknown question family 'smell'"):
        questions_for(SCENES[3], 0, {"smell": 1})


def test_questions_name_the_things_they_rest_on():
    for scene in SCENES[:60]:
        for item in questions_for(scene, per_family=2):
            assert set(item.about) <= set(scene.things)
            if item.family == "counting":
                assert item.answer == str(len(item.about))
            elif item.answer != "no":
                assert item.about
