"""The commands on a small untrained model: what they print, their JSON, their files, their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from covist import available_methods, environment
from covist.bench import protocol
from covist.request import answer as asking

SMALL = ("--max-new-tokens", "2")


def test_help_does_not_import_torch():
    program = (
        "import sys\nfrom covist.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('heavy:', sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "heavy: []" in ran.stdout
    for command in ("run", "show", "plan", "bench", "eval", "methods", "models", "doctor"):
        assert command in ran.stdout


@pytest.mark.parametrize("command", ["run", "show", "plan", "bench", "eval", "methods", "models", "doctor"])
def test_every_command_explains_itself_and_speaks_json(covist, command):
    ran = covist(command, "--help")
    assert ran.code == 0
    assert "--json" in ran.stdout and "--verbose" in ran.stdout


def test_no_command_is_a_wish_for_help(covist):
    ran = covist()
    assert ran.code == 0 and ran.stderr == ""
    assert "Usage:" in ran.stdout


def test_version(covist):
    assert covist("--version").stdout.startswith("covist 0.")


def test_run_compares_both_models(covist, model_folder):
    ran = covist("run", "--model", model_folder, "--compare", *SMALL)
    assert ran.code == 0 and ran.stderr == ""
    for text in ("where is the blue square?", "uncompressed", "covist-fixed", "576", "64", "11.1 %", "KV cache", "ms"):
        assert text in ran.stdout


def test_run_takes_a_combination(covist, model_folder):
    ran = covist("run", "--model", model_folder, "--method", "divprune+csc+sca", "--json", *SMALL)
    (only,) = ran.json["results"]
    assert only["method"] == "divprune+csc+sca" and only["mean_tokens"] == 64
    weights = only["report"]["images"][0]["stages"][0]["weights"]
    assert max(weights) > 1, "composition gave no representative any weight"


def test_run_as_json(covist, model_folder):
    result = covist("run", "--model", model_folder, "--compare", "--strategy", "pro", "--json", *SMALL).json
    assert set(result) == {"model", "prompt", "budget", "same_answer", "results"}
    vanilla, pro = result["results"]
    assert vanilla["method"] == "vanilla" and vanilla["mean_tokens"] == 576 and vanilla["report"] is None
    assert pro["method"] == "covist-pro" and pro["mean_tokens"] == pytest.approx(64, abs=1)
    assert pro["kv_bytes"] == pro["report"]["kv_bytes"]
    assert vanilla["kv_bytes"] == pro["report"]["kv_bytes_uncompressed"]
    assert vanilla["flops"] == pro["report"]["flops_uncompressed"]
    assert set(pro["seconds"]) == {"ttft", "prefill", "generation"}
    assert 0 < pro["seconds"]["prefill"] < pro["seconds"]["ttft"] < pro["seconds"]["generation"]


def test_run_on_own_pictures_with_another_method(covist, model_folder, picture):
    arguments = ("--image", picture, "--image", picture, "--prompt", "what color is the square?", "--budget", "10%")
    result = covist("run", "--model", model_folder, *arguments, "--method", "random", "--json", *SMALL).json
    images = result["results"][0]["report"]["images"]
    assert [image["mean_tokens"] for image in images] == [58, 58]


def test_run_warns_about_words_the_model_does_not_know(covist, model_folder, picture):
    asked = ("--image", picture, "--prompt", "is there a zeppelin? [a] zeppelin?")
    ran = covist("run", "--model", model_folder, *asked, *SMALL)
    assert ran.code == 0
    assert "no word for zeppelin?, [a]\n" in ran.stderr
    assert "zeppelin? [a] zeppelin?" in ran.stdout
    drawn = covist("show", "--model", model_folder, *asked, "--out", picture.parent / "[a].png", *SMALL)
    assert "no word for zeppelin?, [a]\n" in drawn.stderr
    assert "zeppelin? [a] zeppelin?" in drawn.stdout and "[a].png" in drawn.stdout


def test_run_without_compression_has_nothing_beside_it(covist, model_folder):
    ran = covist("run", "--model", model_folder, "--method", "vanilla", *SMALL)
    assert ran.code == 0 and "vanilla" in ran.stdout
    assert "uncompressed" not in ran.stdout and "--compare" not in ran.stdout


def test_run_without_arguments_writes_nothing(covist, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert covist("run", "--model", model_folder, *SMALL).code == 0
    assert list(tmp_path.iterdir()) == []


def test_overlay(covist, model_folder, tmp_path):
    ran = covist("run", "--model", model_folder, "--overlay", tmp_path / "new" / "kept.png", *SMALL)
    assert ran.code == 0
    assert (tmp_path / "new" / "kept.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "start"), [("figure.png", b"\x89PNG"), ("figure.svg", b"<?xml")])
def test_show(covist, model_folder, tmp_path, name, start):
    ran = covist("show", "--model", model_folder, "--strategy", "pro", "--out", tmp_path / name, "--json", *SMALL)
    assert ran.json["figure"] == str(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_show_vanilla_has_nothing_to_draw(covist, model_folder, tmp_path):
    ran = covist("show", "--model", model_folder, "--method", "vanilla", "--out", tmp_path / "x.png", *SMALL)
    assert ran.code == 2 and "nothing to draw" in ran.stderr


def test_methods_lists_every_registered_method(covist):
    listed = covist("methods", "--json").json["methods"]
    assert [entry["name"] for entry in listed] == list(available_methods())
    for entry in listed:
        assert {"name", "paper", "acts", "signals", "budget", "positions"} <= set(entry)
        assert entry["paper"] and entry["acts"]
    assert "covist-pro" in covist("methods").stdout


def test_models(covist):
    families = {entry["family"]: entry["classes"] for entry in covist("models", "--json").json["models"]}
    assert families["llava-1.5"] == ["LlavaForConditionalGeneration"]
    assert "llava-1.5" in covist("models").stdout


def test_doctor_finds_what_is_installed(covist):
    ran = covist("doctor", "--json")
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert checks["torch"]["status"] == "ok" and checks["torch"]["found"].startswith("2.")
    assert ran.code == (0 if ran.json["healthy"] else 1)
    assert "torch" in covist("doctor").stdout


def test_doctor_names_a_release_outside_the_declared_range(covist, monkeypatch):
    monkeypatch.setattr(environment, "requires", lambda name: ["torch>=2", "transformers>=1000"])
    ran = covist("doctor", "--json")
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert ran.code == 1 and checks["torch"]["status"] == "ok"
    assert checks["transformers"]["status"] == "missing"
    assert "which is not >=1000" in checks["transformers"]["found"]
    assert checks["transformers"]["advice"] == "pip install 'transformers>=1000'"


def test_bench_as_json_and_file(covist, model_folder, picture, tmp_path):
    small = ("--prompts", 1, "--warmup", 1, "--repetitions", 2, "--max-new-tokens", 2, "--out", tmp_path)
    request = ("--model", model_folder, "--image", picture, "--prompt", "what is this?")
    ran = covist("bench", *request, "--methods", "covist-fixed", "--json", *small)
    assert ran.code == 0 and ran.json["complete"]
    assert ran.json == json.loads((tmp_path / "bench.json").read_text())
    assert [(row["method"], row["budget"]) for row in ran.json["results"]] == [("vanilla", None), ("covist-fixed", 64)]


def test_bench_prints_tables(covist, model_folder, picture):
    small = ("--prompts", 1, "--warmup", 0, "--repetitions", 1, "--max-new-tokens", 2, "--budgets", "32,16")
    ran = covist("bench", "--model", model_folder, "--image", picture, "--prompt", "what is this?", *small)
    assert ran.code == 0
    for text in ("TTFT", "speed-up", "covist-pro", "peak MiB", "median"):
        assert text in ran.stdout


def test_interrupted_bench_leaves_what_is_finished(covist, model_folder, picture, monkeypatch):
    original, calls = protocol.measure, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(protocol, "measure", interrupted)
    small = ("--prompts", 2, "--warmup", 0, "--repetitions", 1, "--max-new-tokens", 2, "--json")
    ran = covist("bench", "--model", model_folder, "--image", picture, "--prompt", "what is this?", *small)
    assert ran.code == 130
    assert not ran.json["complete"]
    assert [(row["method"], row["requests"]) for row in ran.json["results"]] == [("vanilla", 2)]


def test_eval_scores_resumes_and_writes(covist, model_folder, tmp_path):
    arguments = ("eval", "--model", model_folder, "--methods", "random", "--budgets", "32", "--out", tmp_path)
    first = covist(*arguments, "--limit", 1, "--json").json
    assert [(row["method"], row["budget"]) for row in first["results"]] == [("vanilla", 576), ("random", 32)]
    assert {"suite", "results", "versions"} <= set(first)
    second = covist(*arguments, "--limit", 2)
    assert second.code == 0 and "about 2 images" in second.stdout
    assert {"results.json", "results.md", "retention.png"} <= {path.name for path in tmp_path.iterdir()}


def test_unexpected_errors_exit_with_1_and_show_a_traceback_only_on_request(covist, model_folder, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(asking, "measure", broken)
    ran = covist("run", "--model", model_folder)
    assert ran.code == 1
    assert ran.stderr == "covist: unexpected RuntimeError: the sky fell; --verbose shows where\n"
    verbose = covist("run", "--model", model_folder, "--verbose")
    assert verbose.code == 1 and "Traceback" in verbose.stderr and "the sky fell" in verbose.stderr


def test_a_value_error_that_we_did_not_raise_is_unexpected(covist, model_folder, monkeypatch):
    monkeypatch.setattr(asking, "measure", lambda *arguments: int("seven"))
    ran = covist("run", "--model", model_folder)
    assert ran.code == 1 and "unexpected ValueError" in ran.stderr


def test_interruption_exits_with_130(covist, model_folder, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(asking, "measure", interrupted)
    ran = covist("run", "--model", model_folder)
    assert ran.code == 130 and ran.stderr == "covist: interrupted\n"
