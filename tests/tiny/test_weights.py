"""The embedded weights: small, loadable by the stock classes, and right about images they have never seen."""

from collections import defaultdict

import pytest
import torch
from support.answers import answers
from transformers import AutoModelForImageTextToText, AutoProcessor

from covist.tiny import (
    DEMO_IMAGE,
    FAMILIES,
    HELD_OUT_SEEDS,
    WEIGHTS,
    demo,
    load,
    prompt_for,
    questions_for,
    render,
    sample_scene,
    scene_image,
)
from covist.tiny.demonstration import DEMO_SEED
from train.tiny.captions import true_names

SCENES = [sample_scene(seed) for seed in HELD_OUT_SEEDS[500:512]]


@pytest.fixture(scope="module")
def loaded():
    return load()


def test_weights_are_small():
    size = sum(file.stat().st_size for file in WEIGHTS.rglob("*") if file.is_file())
    assert size < 8_000_000


def test_auto_classes_give_the_same_logits(loaded):
    model, processor, _ = loaded
    inputs = processor(images=demo()[0], text=prompt_for(demo()[1]), return_tensors="pt")
    auto = AutoModelForImageTextToText.from_pretrained(WEIGHTS, dtype=torch.float32).eval()
    again = AutoProcessor.from_pretrained(WEIGHTS)(images=demo()[0], text=prompt_for(demo()[1]), return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(auto(**again).logits, model(**inputs).logits)


def test_the_demonstration_is_a_held_out_scene_and_is_answered(loaded):
    image, question, answer = demo()
    assert DEMO_SEED in HELD_OUT_SEEDS
    assert image.tobytes() == render(sample_scene(DEMO_SEED)).tobytes()
    assert DEMO_IMAGE.stat().st_size < 50_000
    assert answers(*loaded[:2], image, [question], 3) == [answer]


@pytest.mark.slow  # the suite in tests/eval/test_trained.py asks about other held-out scenes
def test_every_family_is_answered_on_held_out_scenes(loaded):
    hits = defaultdict(list)
    for scene in SCENES:
        items = questions_for(scene)
        replies = answers(*loaded[:2], scene_image(scene), [item.question for item in items], 3)
        for item, reply in zip(items, replies, strict=True):
            hits[item.family].append(reply == item.answer)
    assert set(hits) == set(FAMILIES)
    every = [hit for family in hits.values() for hit in family]
    assert sum(every) / len(every) > 0.94
    assert all(sum(family) / len(family) > 0.8 for family in hits.values()), dict(hits)


def test_clip_tells_true_captions_from_false_ones(loaded):
    _, processor, (clip, tokenizer) = loaded
    names = [
        {name for thing in scene.things if thing.kind != "decoy" for name in true_names(thing)} for scene in SCENES
    ]
    captions = [" and ".join(f"a {thing.color} {thing.shape}" for thing in scene.objects[:3]) for scene in SCENES]
    told = [{f"{thing.color} {thing.shape}" for thing in scene.objects[:3]} for scene in SCENES]
    with torch.no_grad():
        pixels = processor.image_processor([scene_image(scene) for scene in SCENES], return_tensors="pt").pixel_values
        tokens = tokenizer(captions, padding=True, return_tensors="pt")
        scores = clip(pixel_values=pixels, **tokens).logits_per_text  # [captions, images]
    wins = [
        float(scores[i, i] > scores[i, j])
        for i in range(len(SCENES))
        for j in range(len(SCENES))
        if not told[i] <= names[j]
    ]
    assert sum(wins) / len(wins) > 0.85
