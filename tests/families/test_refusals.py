"""Every image-text model of transformers is served, or refused with a reason of one line."""

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import covist
from covist.families import refusals
from covist.families.catalogue import catalogue, refused
from covist.families.refusals import image_text_models, refusal
from covist.families.registry import served_classes

KINDS = {
    "gemma3": refusals.SLIDING,
    "qwen3_5": refusals.HYBRID,
    "kimi_k25": refusals.LATENT_KEYS,
    "blip-2": refusals.Q_FORMER,
    "chameleon": refusals.CODEBOOK,
    "llama4": refusals.CHUNKED,
    "florence2": refusals.ENCODER_DECODER,
    "mllama": refusals.CROSS_ATTENTION,
}


@pytest.fixture(scope="module")
def listed():
    return refused()


def test_every_image_text_model_is_served_or_refused_and_none_is_both(listed):
    served = {name for entry in catalogue() for name in entry["classes"]}
    names = [entry["model_type"] for entry in listed]
    assert len(set(names)) == len(names)
    for model_type, model_class in image_text_models().items():
        assert (model_class in served) != (model_type in names), model_type


def test_every_reason_is_one_clear_line(listed):
    for entry in listed:
        reason = entry["reason"]
        assert 20 < len(reason) < 120 and "\n" not in reason and not reason.endswith("."), entry


@pytest.mark.parametrize("model_type", [name for name in KINDS if name in image_text_models()])
def test_the_reason_names_the_obstacle(model_type):
    assert refusal(CONFIG_MAPPING[model_type]()) == KINDS[model_type]


def test_a_checkpoint_is_judged_by_its_own_configuration():
    """Sliding windows are a property of a text model, not of the class that holds it."""
    config = transformers.VipLlavaConfig(text_config=transformers.MistralConfig(sliding_window=64))
    assert refusal(config) == refusals.SLIDING
    config = transformers.VipLlavaConfig(text_config=transformers.MistralConfig(sliding_window=None))
    assert refusal(config) == refusals.NO_FAMILY


def test_what_is_no_image_text_model_has_no_reason():
    assert refusal(transformers.LlamaConfig()) is None and refusal(None) is None


def test_compress_refuses_with_the_reason():
    text = transformers.MistralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        sliding_window=8,
    )
    vision = transformers.CLIPVisionConfig(hidden_size=24, intermediate_size=16, num_hidden_layers=5)
    with torch.device("meta"):
        model = transformers.VipLlavaForConditionalGeneration(
            transformers.VipLlavaConfig(text_config=text, vision_config=vision)
        )
    with pytest.raises(covist.CovistError, match=r"^VipLlavaForConditionalGeneration is not supported: sliding-window"):
        covist.compress(model)


def test_stated_reasons_are_for_models_that_no_family_serves():
    known = image_text_models()
    assert not {known[name] for name in refusals.STATED if name in known} & set(served_classes())
