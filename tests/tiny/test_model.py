"""The model is made of stock classes, and the shortcuts of the training compute what those classes compute."""

import torch
from safetensors import safe_open
from torch.testing import assert_close
from transformers import AutoModelForImageTextToText, AutoProcessor, CLIPModel, LlavaForConditionalGeneration

from covist.tiny import Size, build_random, prompt_for, questions_for, sample_scene, save, scene_image
from covist.tiny.data import SceneBank
from covist.tiny.decoder import DecoderTrainer
from covist.tiny.model import build_clip, build_llava
from covist.tiny.optim import orthogonalise
from covist.tiny.packing import pack
from covist.tiny.scenes import GRID
from covist.tiny.store import fold_standardisation, load
from covist.tiny.vision import encode

SMALL = Size(width=64, vision_layers=2, text_layers=1, decoder_layers=2, decoder_mlp=96)
EVERYWHERE = torch.arange(GRID * GRID)[None]


def test_the_default_architecture_has_the_depths_that_pro_cuts_at():
    model, _, (clip, _) = build_random()
    assert isinstance(model, LlavaForConditionalGeneration)
    assert isinstance(clip, CLIPModel)
    assert len(model.model.language_model.layers) == 8
    assert model.model.vision_tower.embeddings.num_patches == 576
    assert sum(parameter.numel() for parameter in model.parameters()) < 3_000_000


def test_random_models_share_the_tower_with_their_clip():
    model, _, (clip, _) = build_random(seed=3, size=SMALL)
    for name, value in model.model.vision_tower.state_dict().items():
        assert torch.equal(value, clip.vision_model.state_dict()[name])


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
        standardise = trainer.standardise
        fold_standardisation(model.model.multi_modal_projector.linear_1, standardise.mean, standardise.std)
        model.set_attn_implementation("sdpa")
        answers = packed.answered[0].nonzero()[:, 0]
        processor = build_random(size=SMALL)[1]
        for place, item in zip(answers, questions, strict=True):
            inputs = processor(images=scene_image(sample_scene(0)), text=prompt_for(item.question), return_tensors="pt")
            assert_close(logits[place], model(**inputs).logits[0, -1], atol=2e-4, rtol=1e-3)


def test_a_saved_folder_is_read_by_the_auto_classes(tmp_path):
    model, _, (clip, _) = build_random(size=SMALL)
    save(model, clip, tmp_path)
    auto = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert isinstance(auto, LlavaForConditionalGeneration)
    inputs = AutoProcessor.from_pretrained(tmp_path)(
        images=scene_image(sample_scene(1)), text=prompt_for("is there a ring?"), return_tensors="pt"
    )
    assert auto.generate(**inputs, max_new_tokens=2, do_sample=False).shape[1] > inputs.input_ids.shape[1]


def test_loading_restores_clip_although_its_tower_is_stored_once(tmp_path):
    model, _, (clip, tokenizer) = build_random(size=SMALL)
    save(model, clip, tmp_path)
    with safe_open(tmp_path / "clip" / "text.safetensors", "pt") as stored:
        assert not any(name.startswith("vision_model") for name in stored.keys())  # noqa: SIM118
    loaded, _, (loaded_clip, loaded_tokenizer) = load(tmp_path)
    for saved, restored in ((model, loaded), (clip, loaded_clip)):
        for name, value in saved.state_dict().items():
            assert_close(restored.state_dict()[name], value, atol=2e-3, rtol=1e-3)
    assert loaded_tokenizer("a red circle").input_ids == tokenizer("a red circle").input_ids


def test_muon_updates_are_orthogonal():
    torch.manual_seed(0)
    for shape in ((3, 96, 32), (1, 32, 96)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.3
