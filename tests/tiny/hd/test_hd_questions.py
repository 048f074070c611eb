"""Questions about crowded scenes: every answer is recomputed here from the words and the list of things."""

import re
from collections import Counter

import pytest
from support.hd_scenes import meant, place, read, the

from covist.tiny.hd.questions import HD_FAMILIES, LESSONS, MOST_COUNTED, hd_questions_for
from covist.tiny.hd.scenes import sample_hd_scene
from covist.tiny.scenes import Scene
from covist.tiny.text import TOKEN_ID, UNKNOWN, build_tokenizer

SCENES = [sample_hd_scene(seed) for seed in range(60)]


def check(scene: Scene, question: str) -> str:
    """The answer, found by reading the question."""
    if match := re.fullmatch(r"is there an? (.+)\?", question):
        return "yes" if meant(scene, match[1]) else "no"
    if match := re.fullmatch(r"what color is the (.+)\?", question):
        return the(scene, match[1]).color
    if match := re.fullmatch(r"what shape is the (.+)\?", question):
        return the(scene, match[1]).shape
    if match := re.fullmatch(r"is the (.+) small or large\?", question):
        return the(scene, match[1]).size
    if match := re.fullmatch(r"how many (.+) are there\?", question):
        return str(len(meant(scene, match[1])))
    if match := re.fullmatch(r"is the (.+) left or right of the (.+)\?", question):
        return "left" if the(scene, match[1]).x < the(scene, match[2]).x else "right"
    if match := re.fullmatch(r"is the (.+) above or below the (.+)\?", question):
        return "above" if the(scene, match[1]).y < the(scene, match[2]).y else "below"
    if match := re.fullmatch(r"where is the (.+)\?", question):
        return place(the(scene, match[1]))
    if match := re.fullmatch(r"what is the (first|last) (?:digit|letter) of the (\w+) (number|word)\?", question):
        return read(scene, match[2], match[3])[0 if match[1] == "first" else -1]
    match = re.fullmatch(r"what is the (\w+) (number|word)\?", question)
    assert match, question
    return " ".join(read(scene, match[1], match[2]))


def test_every_answer_follows_from_the_scene():
    for scene in SCENES:
        for item in hd_questions_for(scene, per_family=dict.fromkeys(LESSONS, 3)):
            assert check(scene, item.question) == item.answer, (scene.seed, item)


def test_every_family_is_asked_in_nearly_every_scene():
    asked = Counter(item.family for scene in SCENES for item in hd_questions_for(scene))
    assert set(asked) == set(HD_FAMILIES)
    assert min(asked.values()) >= 0.95 * len(SCENES)


def test_counts_go_up_to_six_and_no_answer_dominates():
    counts = Counter(item.answer for scene in SCENES for item in hd_questions_for(scene, per_family={"counting": 6}))
    assert set(counts) == {str(count) for count in range(MOST_COUNTED + 1)}
    assert max(counts.values()) < 0.35 * sum(counts.values())


def test_the_same_seed_asks_the_same_questions():
    assert hd_questions_for(SCENES[0], 5) == hd_questions_for(SCENES[0], 5)
    assert hd_questions_for(SCENES[0], 5, 3) != hd_questions_for(SCENES[0], 6, 3)


def test_every_word_is_in_the_vocabulary():
    tokenizer = build_tokenizer()
    for scene in SCENES[:20]:
        for item in hd_questions_for(scene, per_family=2):
            words = tokenizer(f"{item.question} {item.answer}", add_special_tokens=False).input_ids
            assert TOKEN_ID[UNKNOWN] not in words


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match="unknown question family 'digit'; choose from existence"):
        hd_questions_for(SCENES[0], per_family={"digit": 1})
