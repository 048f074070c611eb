"""The shortcuts of the training compute what the stock classes compute."""

import torch
from torch.testing import assert_close

from covist.tiny import Size, build_random, prompt_for, questions_for, sample_scene, scene_image
from covist.tiny.model import build_clip, build_llava
from covist.tiny.scenes import GRID
from train.tiny.data import SceneBank
from train.tiny.decoder import DecoderTrainer
from train.tiny.packing import pack
from train.tiny.vision import encode

SMALL = Size(width=64, vision_layers=2, text_layers=1, decoder_layers=2, decoder_mlp=96)
EVERYWHERE = torch.arange(GRID * GRID)[None]


def test_encoding_patches_equals_the_stock_tower(tmp_path):
    bank = SceneBank(tmp_path, 0, 1)
    tower = build_clip(SMALL).vision_model
    pixels = build_random(size=SMALL)[1].image_processor(scene_image(sample_scene(0)), return_tensors="pt").pixel_values
    with torch.no_grad():
        expected = tower(pixels, output_hidden_states=True)
        features, pooled = encode(tower, bank.batch([0])[0], EVERYWHERE)
    assert_close(features, expected.hidden_states[-2][:, 1:], atol=1e-4, rtol=1e-4)
    assert_close(pooled, expected.pooler_output, atol=1e-4, rtol=1e-4)


def test_packed_questions_get_the_logits_they_would_get_alone(tmp_path):
    model = build_llava(SMALL).eval()
    trainer = DecoderTrainer(model, SceneBank(tmp_path, 0, 2), tmp_path, seed=0)
    questions = questions_for(sample_scene(0))
    packed = pack([questions])
    with torch.no_grad():
        features, _ = encode(trainer.tower, trainer.bank.batch([0])[0], EVERYWHERE)
        logits = trainer.answer_logits(features, EVERYWHERE, packed)[0][0]
        trainer.standardise.fold_into(model.model.multi_modal_projector.linear_1)
        model.set_attn_implementation("sdpa")
        answers = packed.answered[0].nonzero()[:, 0]
        processor = build_random(size=SMALL)[1]
        for place, item in zip(answers, questions, strict=True):
            inputs = processor(images=scene_image(sample_scene(0)), text=prompt_for(item.question), return_tensors="pt")
            assert_close(logits[place], model(**inputs).logits[0, -1], atol=2e-4, rtol=1e-3)
