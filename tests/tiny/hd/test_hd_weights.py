"""The second bed's weights: small, loadable by the stock classes, and right about images they have never seen."""

from collections import defaultdict

import pytest
import torch
from support.answers import answers
from transformers import AutoModelForImageTextToText, AutoProcessor, LlavaNextForConditionalGeneration

from covist.request.loading import load_model
from covist.tiny import HELD_OUT_SEEDS, NEXT_WEIGHTS, demo, load, prompt_for
from covist.tiny.demonstration import HD_DEMO_SEED
from covist.tiny.hd import HD_FAMILIES, hd_questions_for, sample_hd_scene
from covist.tiny.scenes import scene_image

SCENES = [sample_hd_scene(seed) for seed in HELD_OUT_SEEDS[500:504]]


@pytest.fixture(scope="module")
def loaded():
    return load("next")


def test_weights_are_small():
    size = sum(file.stat().st_size for file in NEXT_WEIGHTS.rglob("*") if file.is_file())
    assert size < 8_000_000


def test_it_is_a_llava_next_of_sixteen_layers(loaded):
    model = loaded[0]
    assert type(model) is LlavaNextForConditionalGeneration
    assert len(model.model.language_model.layers) == 16


def test_the_command_line_knows_it_by_name(loaded):
    named = load_model("tiny-next", device="cpu")
    for one, other in zip(named.model.parameters(), loaded[0].parameters(), strict=True):
        assert torch.equal(one, other)
    assert named.clip is not None


def test_auto_classes_give_the_same_logits(loaded):
    model, processor, _ = loaded
    image, question, _ = demo("next")
    inputs = processor(images=image, text=prompt_for(question), return_tensors="pt")
    auto = AutoModelForImageTextToText.from_pretrained(NEXT_WEIGHTS, dtype=torch.float32).eval()
    again = AutoProcessor.from_pretrained(NEXT_WEIGHTS)(images=image, text=prompt_for(question), return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(auto(**again).logits, model(**inputs).logits)


def test_the_demonstration_is_a_held_out_scene_and_is_answered(loaded):
    image, question, answer = demo("next")
    assert HD_DEMO_SEED in HELD_OUT_SEEDS
    assert answers(*loaded[:2], image, [question], 4) == [answer]


@pytest.mark.slow  # the suite in tests/eval/test_trained.py asks about other held-out scenes
def test_held_out_scenes_are_answered(loaded):
    hits = defaultdict(list)
    for scene in SCENES:
        items = hd_questions_for(scene)
        replies = answers(*loaded[:2], scene_image(scene), [item.question for item in items], 4)
        for item, reply in zip(items, replies, strict=True):
            hits[item.family].append(reply == item.answer)
    assert set(hits) == set(HD_FAMILIES)
    every = [hit for family in hits.values() for hit in family]
    assert sum(every) / len(every) > 0.85, dict(hits)
