"""`covist vllm-args`: a line for the shell, and refusals before a server starts."""

import json
import shlex

import pytest
import transformers
from support.cases import first_of

from covist import tiny
from covist.api.setup import Setup
from covist.config import CovistConfig
from covist.request.concentration import MEASURED


def parsed(line: str) -> tuple[str, dict]:
    """The model and the overrides, as a shell and vLLM would read them."""
    program, verb, model, option, overrides = shlex.split(line)
    assert (program, verb, option) == ("vllm", "serve", "--hf-overrides")
    return model, json.loads(overrides)


def test_the_line_is_what_a_shell_reads_back(covist):
    ran = covist("vllm-args", "--model", "tiny", "--budget", 48)
    assert ran.code == 0 and ran.stderr == "" and ran.stdout.count("\n") == 1
    assert parsed(ran.stdout) == (
        str(tiny.WEIGHTS),
        {
            "architectures": ["CovistLlavaForConditionalGeneration"],
            "covist": {"method": "covist-fixed", "budget": 48, "concentration": MEASURED["tiny"]},
        },
    )


def test_json_has_the_same_command(covist):
    ran = covist("vllm-args", "--model", "tiny", "--instruction", "--clip", "it's a clip", "--columns", 16, "--json")
    model, overrides = parsed(ran.json["command"])
    assert (model, overrides) == (ran.json["model"], ran.json["hf_overrides"])
    assert overrides["covist"].items() >= {"instruction": True, "clip": "it's a clip", "columns": 16}.items()


def test_a_file_gives_method_budget_reference_and_the_constants_that_differ(covist, tmp_path, model_folder):
    setup = Setup("covist-fixed", "11%", 0.25, CovistConfig(weight_limit=64))
    setup.save(tmp_path / "covist.json")
    ran = covist("vllm-args", "--model", model_folder, "--config", tmp_path / "covist.json")
    expected = {"method": "covist-fixed", "budget": "11%", "concentration": 0.25, "constants": {"weight_limit": 64}}
    assert parsed(ran.stdout) == (
        str(model_folder),
        {"architectures": ["CovistLlavaForConditionalGeneration"], "covist": expected},
    )
    assert ran.stderr == ""


def test_options_override_the_file(covist, tmp_path, model_folder):
    Setup("covist-fixed", 96, 0.25).save(tmp_path / "covist.json")
    file = ("--config", tmp_path / "covist.json")
    ran = covist("vllm-args", "--model", model_folder, *file, "--budget", 32, "--concentration", 0.5)
    assert parsed(ran.stdout)[1]["covist"] == {"method": "covist-fixed", "budget": 32, "concentration": 0.5}


def test_a_model_without_a_reference_gets_a_note_that_says_how_to_measure_it(covist, model_folder):
    ran = covist("vllm-args", "--model", model_folder)
    assert ran.code == 0 and "covist concentration --model" in ran.stderr and ran.stderr.count("\n") == 1
    assert "concentration" not in parsed(ran.stdout)[1]["covist"]


def test_a_method_without_a_reference_needs_none(covist, model_folder):
    ran = covist("vllm-args", "--model", model_folder, "--method", "divprune", "--concentration", 0.5)
    assert ran.stderr == "" and parsed(ran.stdout)[1]["covist"] == {"method": "divprune", "budget": 64}


CLASSES = {
    "LlavaConfig": "LlavaForConditionalGeneration",
    "LlavaNextConfig": "LlavaNextForConditionalGeneration",
    "LlavaOnevisionConfig": "LlavaOnevisionForConditionalGeneration",
    "InternVLConfig": "InternVLForConditionalGeneration",
    "Qwen2VLConfig": "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLConfig": "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLConfig": "Qwen3VLForConditionalGeneration",
    "Qwen3_5Config": "Qwen3_5ForConditionalGeneration",  # linear attention
    "Glm4vConfig": "Glm4vForConditionalGeneration",
    "Idefics3Config": "Idefics3ForConditionalGeneration",
    "SmolVLMConfig": "SmolVLMForConditionalGeneration",
    "Mistral3Config": "Mistral3ForConditionalGeneration",
    "DeepseekVLV2ForCausalLM": "DeepseekVLV2ForCausalLM",  # latent attention; transformers has no class for it
    "VipLlavaConfig": "TransformersMultiModalForCausalLM",  # vLLM has no class for it
}


@pytest.mark.parametrize(("config", "architecture"), CLASSES.items())
def test_the_architecture_follows_from_the_checkpoint(covist, tmp_path, config, architecture):
    if hasattr(transformers, config):
        made = config.replace("Config", "ForConditionalGeneration")
        getattr(transformers, config)(architectures=[made]).save_pretrained(tmp_path)
    else:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "architectures": [config]}))
    ran = covist("vllm-args", "--model", tmp_path)
    assert ran.code == 0 and parsed(ran.stdout)[1]["architectures"] == [f"Covist{architecture}"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--method", "covist-pro"), "covist-pro removes tokens inside the decoder"),
        (("--method", "fastv"), "fastv removes tokens inside the decoder"),
        (("--method", "restore-divprune"), "restore-divprune biases prefill and decoding differently"),
        (("--method", "vanilla"), "vanilla is the uncompressed model"),
        (("--method", "nonsense"), "nonsense"),
        (("--budget", "auto"), "fixes the prompt's length before the image is seen"),
        (("--budget", "-3"), "budget"),
        (("--clip", "somewhere"), "clip needs the instruction"),
        (("--columns", "12"), "give a multiple of 8"),
        (("--concentration", "2"), "concentration must be a number in [0, 1]"),
        (("--model", "nowhere/nothing"), "unknown model"),
    ],
)
def test_settings_the_engine_would_refuse_are_refused_in_one_line(covist, given, words):
    ran = covist("vllm-args", *given)
    assert ran.code == 2 and ran.stdout == ""
    assert ran.stderr.startswith("covist: ") and ran.stderr.count("\n") == 1 and words in ran.stderr


@pytest.mark.parametrize("family", ["internvl", "pixtral"])
def test_models_whose_tower_is_not_read_get_a_method_that_reads_embeddings(covist, tmp_path, family):
    """Pixtral's checkpoints have the class of LLaVA."""
    case = first_of(family)
    case.model.config.save_pretrained(tmp_path)
    ran = covist("vllm-args", "--model", tmp_path)
    overrides = parsed(ran.stdout)[1]
    assert ran.stderr == "" and overrides["architectures"] == [f"Covist{case.model_class}"]
    assert overrides["covist"] == {"method": "covist-max:features=embeddings", "budget": "20%"}
    refused = covist("vllm-args", "--model", tmp_path, "--method", "covist-fixed")
    assert refused.code == 2 and refused.stderr.count("\n") == 1
    assert f"not in {case.model_class}; use covist-max:features=embeddings" in refused.stderr


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_of_qwen_the_tower_is_read_if_a_method_asks_for_it(covist, tmp_path, family):
    first_of(family).model.config.save_pretrained(tmp_path)
    usual = parsed(covist("vllm-args", "--model", tmp_path).stdout)[1]
    assert usual["covist"]["method"] == "covist-max:features=embeddings"
    asked = covist("vllm-args", "--model", tmp_path, "--method", "covist-fixed", "--instruction")
    assert parsed(asked.stdout)[1]["covist"] == {"method": "covist-fixed", "budget": "20%", "instruction": True}


def test_a_checkpoint_that_brings_its_code_is_known_by_its_class(covist, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "architectures": ["MiniCPMV"]}))
    assert parsed(covist("vllm-args", "--model", tmp_path).stdout)[1]["architectures"] == ["CovistMiniCPMV"]


def test_a_class_that_cannot_be_compressed_is_refused_with_the_reason(covist, tmp_path):
    written = {"model_type": "own", "architectures": ["PixtralForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(written))
    ran = covist("vllm-args", "--model", tmp_path)
    assert ran.code == 2 and ran.stderr.count("\n") == 1 and "Mistral's tokenizer writes its tokens" in ran.stderr


def test_the_default_budget_is_that_of_the_model(covist):
    assert covist("vllm-args", "--json").json["hf_overrides"]["covist"]["budget"] == 64


def test_a_reference_of_another_model_is_refused(covist, tmp_path):
    entry = {"name": "other", "model_type": "qwen3_vl", "concentration": 0.00002}
    Setup("covist-fixed", 64, 0.00002, origin={"tuned_on": entry}).save(tmp_path / "covist.json")
    ran = covist("vllm-args", "--config", tmp_path / "covist.json")
    assert ran.code == 2 and "tuned on other (qwen3_vl): the concentration reference 2e-05 is not that of" in ran.stderr
