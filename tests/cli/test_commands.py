"""The commands on a small untrained model: what they print, their JSON, their files, their exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from covist.bench import protocol
from covist.cli import console
from covist.eval.subject import Subject
from covist.request import answer as asking
from covist.viz.theme import THEMES

SMALL = ("--max-new-tokens", "2")


def test_help_does_not_import_torch():
    program = (
        "import sys\nfrom covist.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('heavy:', sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "heavy: []" in ran.stdout
    for command in ("run", "show", "plan", "bench", "eval", "methods", "models", "doctor", "serve", "batch", "export"):
        assert command in ran.stdout


@pytest.mark.parametrize(
    "command", ["run", "show", "plan", "bench", "eval", "methods", "models", "doctor", "batch", "export"]
)
def test_every_command_explains_itself_and_speaks_json(covist, command):
    ran = covist(command, "--help")
    assert ran.code == 0
    assert "--json" in ran.stdout and "--verbose" in ran.stdout


def test_no_command_shows_the_help(covist):
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
    assert "times: medians of 3 requests after a warm-up request" in ran.stdout


def test_run_alone_says_that_nothing_was_warm(covist, model_folder):
    ran = covist("run", "--model", model_folder, *SMALL)
    assert "times of a first request; --compare warms up and repeats" in ran.stdout


def test_run_takes_a_combination(covist, model_folder):
    ran = covist("run", "--model", model_folder, "--method", "divprune+csc+sca", "--json", *SMALL)
    (only,) = ran.json["results"]
    assert only["method"] == "divprune+csc+sca" and only["mean_tokens"] == 64
    weights = only["report"]["images"][0]["stages"][0]["weights"]
    assert max(weights) > 1, "composition gave no representative any weight"


def test_run_as_json(covist, model_folder):
    result = covist("run", "--model", model_folder, "--compare", "--strategy", "pro", "--json", *SMALL).json
    assert set(result) == {"model", "prompt", "budget", "notes", "same_answer", "results"}
    assert result["notes"] == []
    vanilla, pro = result["results"]
    assert vanilla["method"] == "vanilla" and vanilla["mean_tokens"] == 576 and vanilla["report"] is None
    assert pro["method"] == "covist-pro" and pro["mean_tokens"] == pytest.approx(64, abs=1)
    assert pro["kv_bytes"] == pro["report"]["kv_bytes"]
    assert vanilla["kv_bytes"] == pro["report"]["kv_bytes_uncompressed"]
    assert vanilla["flops"] == pro["report"]["flops_uncompressed"]
    assert set(pro["seconds"]) == {"ttft", "prefill", "generation"}
    assert 0 < pro["seconds"]["prefill"] < pro["seconds"]["ttft"] < pro["seconds"]["generation"]


def test_run_on_own_images_with_another_method(covist, model_folder, image):
    arguments = ("--image", image, "--image", image, "--prompt", "what color is the square?", "--budget", "10%")
    result = covist("run", "--model", model_folder, *arguments, "--method", "random", "--json", *SMALL).json
    images = result["results"][0]["report"]["images"]
    assert [image["mean_tokens"] for image in images] == [58, 58]


def test_run_warns_about_words_the_model_does_not_know(covist, model_folder, image):
    asked = ("--image", image, "--prompt", "is there a zeppelin? [a] zeppelin?")
    ran = covist("run", "--model", model_folder, *asked, *SMALL)
    assert ran.code == 0
    assert "not in the model's vocabulary: zeppelin?, [a]\n" in ran.stderr
    assert "zeppelin? [a] zeppelin?" in ran.stdout
    drawn = covist("show", "--model", model_folder, *asked, "--out", image.parent / "[a].png", *SMALL)
    assert "not in the model's vocabulary: zeppelin?, [a]\n" in drawn.stderr
    assert "zeppelin? [a] zeppelin?" in drawn.stdout and "[a].png" in drawn.stdout


def test_an_embedded_model_is_asked_anything_about_the_bundled_image(covist):
    ran = covist("run", "--prompt", "how many circles are there?", "--json")
    assert (ran.json["prompt"], ran.json["results"][0]["answer"]) == ("how many circles are there?", "2")


def test_run_without_compression_has_nothing_beside_it(covist, model_folder):
    ran = covist("run", "--model", model_folder, "--method", "vanilla", *SMALL)
    assert ran.code == 0 and "vanilla" in ran.stdout
    assert "uncompressed" not in ran.stdout and "--compare" not in ran.stdout


def test_run_without_arguments_writes_nothing(covist, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert covist("run", "--model", model_folder, *SMALL).code == 0
    assert list(tmp_path.iterdir()) == []


def test_overlay(covist, model_folder, tmp_path):
    ran = covist("run", "--model", model_folder, "--overlay", tmp_path / "kept.png", *SMALL)
    assert ran.code == 0
    assert (tmp_path / "kept.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "start"), [("figure.png", b"\x89PNG"), ("figure.svg", b"<?xml")])
def test_show(covist, model_folder, tmp_path, name, start):
    ran = covist("show", "--model", model_folder, "--strategy", "pro", "--out", tmp_path / name, "--json", *SMALL)
    assert ran.json["figure"] == str(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("theme", THEMES)
def test_show_draws_for_the_page_that_was_asked_for(covist, model_folder, tmp_path, theme):
    name = tmp_path / "figure.svg"
    assert covist("show", "--model", model_folder, "--theme", theme, "--out", name, *SMALL).code == 0
    page = re.search(r"fill: (#\w+)", name.read_text(encoding="utf-8"))
    assert page and page[1] == THEMES[theme].background


def test_show_vanilla_has_nothing_to_draw(covist, model_folder, tmp_path):
    ran = covist("show", "--model", model_folder, "--method", "vanilla", "--out", tmp_path / "x.png", *SMALL)
    assert ran.code == 2 and "nothing to draw" in ran.stderr


def test_bench_as_json_and_file(covist, model_folder, image, tmp_path):
    small = ("--prompts", 1, "--warmup", 1, "--repetitions", 2, "--max-new-tokens", 2, "--out", tmp_path)
    request = ("--model", model_folder, "--image", image, "--prompt", "what is this?")
    ran = covist("bench", *request, "--methods", "covist-fixed", "--json", *small)
    assert ran.code == 0 and ran.json["complete"]
    assert ran.json == json.loads((tmp_path / "bench.json").read_text())
    assert [(row["method"], row["budget"]) for row in ran.json["results"]] == [("vanilla", None), ("covist-fixed", 64)]


def test_bench_prints_tables(covist, model_folder, image):
    small = ("--prompts", 1, "--warmup", 0, "--repetitions", 1, "--max-new-tokens", 2, "--budgets", "32,16")
    ran = covist("bench", "--model", model_folder, "--image", image, "--prompt", "what is this?", *small)
    assert ran.code == 0
    for text in ("TTFT", "speed-up", "covist-pro", "peak MiB", "median"):
        assert text in ran.stdout


def test_interrupted_bench_leaves_what_is_finished(covist, model_folder, image, monkeypatch):
    original, calls = protocol.measure, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(protocol, "measure", interrupted)
    small = ("--prompts", 2, "--warmup", 0, "--repetitions", 1, "--max-new-tokens", 2, "--json")
    ran = covist("bench", "--model", model_folder, "--image", image, "--prompt", "what is this?", *small)
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


def test_an_interrupted_eval_says_how_to_go_on(covist, model_folder, tmp_path, monkeypatch):
    def interrupted(self, *asked):
        raise KeyboardInterrupt

    monkeypatch.setattr(Subject, "answer", interrupted)
    arguments = ("eval", "--model", model_folder, "--methods", "random", "--limit", 1)
    kept = covist(*arguments, "--out", tmp_path)
    assert kept.code == 130 and kept.stdout == ""
    assert f"the same command with --out {tmp_path} continues from there" in kept.stderr
    assert kept.stderr.endswith("covist: interrupted\n")
    lost = covist(*arguments)
    assert lost.code == 130 and "nothing was saved; with --out DIR" in lost.stderr


def test_long_names_give_way_to_numbers_in_a_narrow_window(covist, model_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "vispruner:important=0.75,positions=keep"
    ran = covist("eval", "--model", model_folder, "--methods", f"random,{name}", "--budgets", "32", "--limit", 1)
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith(" vispruner:important"))
    assert row.split()[1:3] == ["32", "32"]


def test_a_narrower_eval_leaves_the_summary_and_says_so(covist, model_folder, tmp_path):
    arguments = ("eval", "--model", model_folder, "--methods", "random", "--budgets", "32", "--out", tmp_path)
    covist(*arguments, "--limit", 2)
    ran = covist(*arguments, "--limit", 1)
    assert "about 1 image\n" in ran.stdout
    assert "note: results.json" in ran.stderr and "cover 2 images and are not replaced" in ran.stderr


@pytest.mark.parametrize("command", ["run", "show", "plan", "eval", "bench"])
@pytest.mark.parametrize("budget", ["577", "100%"])
def test_a_budget_of_all_tokens_or_more_leaves_the_image_uncompressed(covist, request, tmp_path, command, budget):
    model = () if command == "plan" else ("--model", request.getfixturevalue("model_folder"))
    more = {
        "run": SMALL,
        "show": ("--out", tmp_path / "figure.png", *SMALL),
        "plan": (),
        "eval": ("--methods", "random", "--limit", 1),
        "bench": ("--methods", "covist-fixed", "--prompts", 1, "--warmup", 0, "--repetitions", 1, *SMALL),
    }[command]
    option = "--budgets" if command in ("eval", "bench") else "--budget"
    image = ("--image", request.getfixturevalue("image"), "--prompt", "what is this?") if command == "bench" else ()
    ran = covist(command, *model, option, budget, *more, *image, "--json")
    assert ran.code == 0, ran.stderr
    assert "a budget of all tokens or more leaves the image uncompressed" in ran.stderr
    kept = ran.json if command == "plan" else ran.json["results"][-1]
    assert kept["mean_tokens"] == 576


@pytest.mark.parametrize("command", ["run", "eval", "bench"])
def test_tables_show_prefill_and_cache_apart_where_they_differ(covist, model_folder, image, command):
    """The test model has few layers: at 400 of 576 tokens IVC-Prune caches 400 and prefills more."""
    more = {
        "run": ("--budget", 400, *SMALL),
        "eval": ("--budgets", 400, "--limit", 1),
        "bench": ("--budgets", 400, "--image", image, "--prompt", "a?", "--prompts", 1, "--repetitions", 1, *SMALL),
    }[command]
    option = "--method" if command == "run" else "--methods"
    word = "visual tokens in the cache" if command == "run" else "cached"
    assert word in covist(command, "--model", model_folder, option, "ivc-prune", *more).stdout
    assert word not in covist(command, "--model", model_folder, option, "fastv", *more).stdout
    figures = covist(command, "--model", model_folder, option, "ivc-prune", *more, "--json").json["results"][-1]
    assert figures["mean_cached_tokens"] == pytest.approx(400, abs=0.5) and figures["mean_tokens"] > 420


@pytest.mark.parametrize("command", ["run", "show", "eval", "bench"])
def test_a_budget_that_a_method_cannot_reach_is_said(covist, model_folder, image, tmp_path, command):
    more = {
        "run": ("--budget", 64, *SMALL),
        "show": ("--budget", 64, "--out", tmp_path / "figure.png", *SMALL),
        "eval": ("--budgets", 64, "--limit", 1),
        "bench": ("--budgets", 64, "--image", image, "--prompt", "a?", "--prompts", 1, "--repetitions", 1, *SMALL),
    }[command]
    option = "--methods" if command in ("eval", "bench") else "--method"
    ran = covist(command, "--model", model_folder, option, "fastv", *more)
    assert "fastv cannot reach a budget of 64 here: the smallest layer mean it can reach is 144.8" in ran.stderr
    if command == "eval":
        assert "not reachable" in ran.stdout


def test_without_a_terminal_eval_and_bench_print_lines(covist, model_folder, image, monkeypatch):
    monkeypatch.setattr("covist.cli.console._Lines.EVERY", 0.0)
    ran = covist("eval", "--model", model_folder, "--methods", "random", "--budgets", "32", "--limit", 1)
    assert [line.split(" s, ")[1] for line in ran.stderr.splitlines()] == ["vanilla 576", "random 32"]
    small = ("--prompts", 1, "--warmup", 0, "--repetitions", 1, "--methods", "random", *SMALL)
    ran = covist("bench", "--model", model_folder, "--image", image, "--prompt", "what is this?", *small)
    assert [line.split(",")[0] for line in ran.stderr.splitlines()] == ["covist: 0 of 2", "covist: 1 of 2"]


def test_lines_come_now_and_then(capsys, monkeypatch):
    clock = iter([0.0, 1.0, 5.0, 20.5, 21.5, 40.0])
    monkeypatch.setattr(console, "perf_counter", lambda: next(clock))
    lines = console._Lines()
    for done in range(5):
        lines(done, 5, "random 32")
    assert capsys.readouterr().err.splitlines() == ["covist: 0 of 5, 1 s, random 32", "covist: 3 of 5, 22 s, random 32"]


@pytest.mark.parametrize("arguments", [("run", "--model", "{}", *SMALL), ("plan", "--json")])
def test_a_reader_that_leaves_early_is_not_an_error(model_folder, arguments):
    """`covist run | head`, with a real pipe that is closed before anything is written."""
    command = [sys.executable, "-m", "covist", *(argument.format(model_folder) for argument in arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)


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
