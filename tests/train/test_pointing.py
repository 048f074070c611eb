"""What words are taught to look at, against the text of the questions read word by word."""

import numpy as np
import pytest
import torch

from covist.tiny import questions_for, sample_scene
from covist.tiny.hd import hd_questions_for, sample_hd_scene
from covist.tiny.hd.scenes import HD_SIDE
from covist.tiny.text import build_tokenizer
from train.tiny.hd.pointing import even_targets
from train.tiny.packing import pack
from train.tiny.pointing import pointers

SCENES = [sample_hd_scene(seed) for seed in (0, 1, 2)]
ASKED = [hd_questions_for(scene, 0, {"existence": 2, "relation": 1, "reading": 1, "shape": 1}) for scene in SCENES]
TOKENS = 40


@pytest.fixture(scope="module")
def shown():
    """Some thing of the scene, or none, for every token that is shown."""
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, len(scene.things) + 1, TOKENS) for scene in SCENES])


@pytest.fixture(scope="module")
def targets(shown):
    return even_targets(SCENES, ASKED, pack(ASKED, TOKENS), shown)


def words(item):
    """Tokens of the prompt, and of prompt and answer."""
    prompt = len(build_tokenizer()(f"{item.question} ASSISTANT:", add_special_tokens=False).input_ids)
    return prompt, prompt + len(item.answer.split())


def expected(scene, asked, owners):
    """Per word that points: its place in the text, the tokens it should look at, and the centre of a single thing."""
    begin = 0
    for item in asked:
        prompt, length = words(item)
        for place in range(begin, begin + prompt) if item.about else ():
            looked_at = [float(owner > 0 and scene.things[owner - 1] in item.about) for owner in owners]
            (thing, *others) = item.about
            yield place, looked_at, None if others else (thing.x / HD_SIDE, thing.y / HD_SIDE)
        begin += length


def test_every_word_of_a_prompt_looks_at_all_the_question_is_about(targets, shown):
    for target, scene, asked, owners in zip(targets, SCENES, ASKED, shown, strict=True):
        places, looked_at, _ = zip(*expected(scene, asked, owners), strict=True)
        assert target.tokens.tolist() == list(places)
        assert target.patches.tolist() == list(looked_at)


def test_only_a_single_thing_has_a_place(targets, shown):
    for target, scene, asked, owners in zip(targets, SCENES, ASKED, shown, strict=True):
        for centre, (*_, place) in zip(target.centres, expected(scene, asked, owners), strict=True):
            if place is None:
                assert centre.isnan().all()
            else:
                assert centre.tolist() == pytest.approx(place)


def test_words_of_the_answer_and_questions_about_nothing_point_nowhere(targets):
    assert any(not item.about for asked in ASKED for item in asked)
    for target, asked in zip(targets, ASKED, strict=True):
        assert len(target.tokens) == sum(words(item)[0] for item in asked if item.about)


def test_things_outside_the_shown_tokens_have_no_target():
    owners = np.zeros((len(SCENES), TOKENS), dtype=int)
    for target in even_targets(SCENES, ASKED, pack(ASKED, TOKENS), owners):
        assert torch.count_nonzero(target.patches) == 0


def test_each_name_of_a_relation_points_at_its_own_thing():
    for scene in map(sample_scene, range(60)):
        for item in questions_for(scene, per_family={"relation": 3}):
            tokens = [*item.question.replace("?", " ?").split(), "ASSISTANT:"]
            (last, both), *names = pointers(item)
            assert (last, both) == (0, item.about)
            for back, (thing,) in names:
                assert tokens[-1 - back] in (thing.shape, "object")
                assert tokens[-2 - back] in (thing.color, "the")
