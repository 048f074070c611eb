"""`covist vllm-args`: a line for the shell, and refusals before a server starts."""

import json
import shlex

import pytest
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


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("llava-next", "CovistLlavaNextForConditionalGeneration"),
        ("qwen2.5-vl", "CovistQwen2_5_VLForConditionalGeneration"),
        ("qwen3-vl", "CovistQwen3VLForConditionalGeneration"),
    ],
)
def test_the_architecture_follows_from_the_checkpoint(covist, tmp_path, family, architecture):
    first_of(family).model.config.save_pretrained(tmp_path)
    ran = covist("vllm-args", "--model", tmp_path)
    assert parsed(ran.stdout)[1]["architectures"] == [architecture]


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
def test_a_family_that_vllm_does_not_serve_is_refused_with_what_it_serves(covist, tmp_path, family):
    """Pixtral's checkpoints have the class of LLaVA."""
    first_of(family).model.config.save_pretrained(tmp_path)
    ran = covist("vllm-args", "--model", tmp_path)
    assert ran.code == 2 and ran.stderr.count("\n") == 1
    assert f"the family {family} is not supported with compression, only LlavaForConditionalGeneration" in ran.stderr
