"""Lessons besides questions: statements are true, and excerpts show less of the same scene."""

import numpy as np
from support.hd_scenes import fits, meant, read, the

from covist.tiny import scene_image
from covist.tiny.hd import sample_hd_scene
from covist.tiny.text import TOKEN_ID, UNKNOWN, build_tokenizer
from train.tiny.hd.lessons import excerpt, statements_about

SCENES = [sample_hd_scene(seed) for seed in range(20)]


def said_about(scene):
    return statements_about(scene, np.random.default_rng(scene.seed), 16)


def test_every_word_of_a_statement_is_in_the_vocabulary():
    for item in map(said_about, SCENES):
        words = build_tokenizer()(f"{item.question} {item.answer}", add_special_tokens=False).input_ids
        assert TOKEN_ID[UNKNOWN] not in words


def test_statements_are_true_and_never_repeated():
    for scene in SCENES:
        said = said_about(scene).answer.split(" , ")
        assert len(set(said)) == len(said)
        for statement in said:
            words = statement.split()
            if words[0] == "there":
                assert ("yes" if meant(scene, " ".join(words[1:3])) else "no") == words[3]
            elif len(words) == 4 and {"small", "large"} & set(words):
                assert any(sum(fits(thing, word) for word in words) >= 3 for thing in scene.objects)
            elif words[-1].isdigit() and words[1] != "number":
                assert str(len(meant(scene, " ".join(words[:-1])))) == words[-1]
            elif words[1] in ("number", "word"):
                assert words[2:] == read(scene, words[0], words[1])
            else:
                one, other = the(scene, " ".join(words[:2])), the(scene, " ".join(words[2:4]))
                true = {"left": one.x < other.x, "right": one.x > other.x}
                true |= {"above": one.y < other.y, "below": one.y > other.y}
                assert words[4:] and all(true[word] for word in words[4:])


def test_an_excerpt_keeps_some_things_and_whole_texts():
    scene = sample_hd_scene(3)
    part = excerpt(scene, objects=4, texts=1, rng=np.random.default_rng(0))
    assert len(part.objects) == 4
    assert len(part.of("digit")) + len(part.of("letter")) == 3
    assert not part.of("decoy")
    assert set(part.things) < set(scene.things)
    assert scene_image(part).size == scene_image(scene).size
