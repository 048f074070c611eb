"""Only models that cannot be compressed are refused, each with a reason of one line."""

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import covist
from covist.families import refusals
from covist.families.refusals import image_text_models, refusal
from covist.families.registry import served_classes

KINDS = {
    "blip-2": refusals.OWN_GENERATE,
    "chameleon": refusals.INSIDE,
    "diffusion_gemma": refusals.DENOISES,
    "florence2": refusals.ENCODER_DECODER,
    "git": refusals.ABSOLUTE,
    "mistral4": refusals.TEXT_ONLY,
    "mllama": refusals.CROSS_ATTENTION,
    "pi0": refusals.NOT_TEXT,
    "unlimited_ocr": refusals.KEPT_PROMPT,
}
RUNNING = ("fuyu", "gemma3", "gemma4", "glm5_next", "kimi_k25", "lfm2_vl", "llama4", "paligemma", "qwen3_5", "vipllava")


@pytest.mark.parametrize("model_type", [name for name in KINDS if name in image_text_models()])
def test_the_reason_names_the_obstacle(model_type):
    assert refusal(CONFIG_MAPPING[model_type]()) == KINDS[model_type]


@pytest.mark.parametrize("model_type", [name for name in RUNNING if name in image_text_models()])
def test_windows_linear_layers_latents_and_prefixes_are_supported(model_type):
    assert refusal(CONFIG_MAPPING[model_type]()) is None


def test_every_reason_fits_into_a_line_of_a_terminal():
    for reason in KINDS.values():
        assert 20 < len(reason) <= 55 and "\n" not in reason and not reason.endswith("."), reason
    assert set(refusals.STATED.values()) <= set(KINDS.values())


def test_a_checkpoint_is_judged_by_its_own_configuration():
    """The layers of a text model decide, not the class that holds it."""
    kept = ["reference_sliding_attention"] * 2
    text = transformers.MistralConfig(num_hidden_layers=2)
    text.layer_types = kept
    assert refusal(transformers.VipLlavaConfig(text_config=text)) == refusals.KEPT_PROMPT


def test_a_model_without_images_gets_no_reason():
    assert refusal(transformers.LlamaConfig()) is None and refusal(None) is None


def test_compress_refuses_with_the_reason():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.device("meta"):
        model = transformers.GitForCausalLM(transformers.GitConfig(**sizes, vision_config=sizes))
    with pytest.raises(covist.CovistError, match=r"^GitForCausalLM is not supported: learned absolute positions"):
        covist.compress(model)


def test_stated_reasons_are_for_models_that_no_family_serves():
    known = image_text_models()
    assert not {known[name] for name in refusals.STATED if name in known} & set(served_classes())
