"""The model is made of stock classes, and a saved folder is one that they read."""

import torch
from safetensors import safe_open
from torch.testing import assert_close
from transformers import AutoModelForImageTextToText, AutoProcessor, CLIPModel, LlavaForConditionalGeneration

from covist.tiny import Size, build_random, load, prompt_for, sample_scene, save, scene_image

SMALL = Size(width=64, vision_layers=2, text_layers=1, decoder_layers=2, decoder_mlp=96)


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
