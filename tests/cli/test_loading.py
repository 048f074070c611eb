"""The options that say how a model is loaded, on every command that loads one."""

import json

import pytest
from typer.testing import CliRunner

from covist.api.origin import TUNED_ON
from covist.api.setup import Setup
from covist.cli.app import COMMANDS, app
from covist.loading import Loading

LOADING = {
    "run": (),
    "show": ("--out", "kept.png"),
    "eval": ("--methods", "random", "--budgets", 16, "--limit", 1),
    "tune": ("--budgets", 16, "--limit", 1, "--keep", 1),
    "calibrate": ("--budgets", 192, "--limit", 1),
    "bench": ("--methods", "random", "--budgets", 16, "--prompts", 1, "--warmup", 0, "--repetitions", 1),
    "concentration": ("--images", "photos"),
    "batch": ("photos", "--prompt", "what is this?", "--out", "answers"),
    "serve": ("--port", 0),
    "reproduce": ("--table", "main"),
}
OPTIONS = ("device", "dtype", "attention", "device-map", "quantization", "adapter", "revision", "trust-remote-code")


@pytest.fixture
def folder(tmp_path, image, monkeypatch):
    """A working directory with photographs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    image.rename(tmp_path / "photos" / "one.png")
    return tmp_path


def test_no_other_command_has_them():
    found = {
        name
        for name in COMMANDS
        if "--quantization" in CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300"}).stdout
    }
    assert found == LOADING.keys()


@pytest.mark.parametrize("command", LOADING)
def test_every_command_that_loads_a_model_has_them(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300"}).stdout
    assert all(f"--{option} " in shown for option in OPTIONS)


@pytest.mark.parametrize("command", [command for command in LOADING if command != "reproduce"])
def test_every_command_passes_them_on(covist, folder, model_folder, command):
    """An adapter that is not there is noticed where the model is loaded, and nowhere before."""
    pytest.importorskip("peft")
    asked = LOADING[command] if command == "batch" else ("--model", model_folder, *LOADING[command])
    more = ("--model", model_folder) if command == "batch" else ()
    ran = covist(command, *asked, *more, "--adapter", folder / "nowhere")
    assert ran.code == 2 and "unknown adapter" in ran.stderr, ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_reproduce_passes_them_to_lmms_eval(covist):
    ran = covist("reproduce", "--table", "main", "--commands", "--dtype", "float16", "--trust-remote-code")
    commands = [line for line in ran.stdout.splitlines() if "--model_args" in line]
    assert commands and all("dtype=float16,trust_remote_code=True" in line for line in commands)


@pytest.mark.parametrize("command", LOADING)
def test_a_wrong_word_is_one_line_before_anything_is_loaded(covist, folder, command):
    ran = covist(command, *LOADING[command], "--dtype", "bf16")
    assert ran.code == 2
    assert ran.stderr.strip() == (
        "covist: dtype 'bf16' is unknown; choose one of auto, float32, bfloat16, float16, float64"
    )


def test_a_file_says_it_and_options_override_it(covist, folder, model_folder):
    Setup("random", 16, loading=Loading(dtype="float16", attention="eager")).save("covist.json")
    asked = ("--config", "covist.json", "--model", model_folder, *LOADING["bench"])
    assert (
        covist("bench", *asked, "--json").json["protocol"].items() >= {"dtype": "float16", "attention": "eager"}.items()
    )
    ran = covist("bench", *asked, "--dtype", "bfloat16", "--json")
    assert ran.json["protocol"].items() >= {"dtype": "bfloat16", "attention": "eager"}.items()


def test_a_file_cannot_trust_code(covist, folder):
    (folder / "covist.json").write_text(json.dumps({"covist_settings": 1, "loading": {"trust_remote_code": True}}))
    ran = covist("run", "--config", "covist.json")
    assert ran.code == 2 and "trust_remote_code is not read from a file" in ran.stderr


def test_tune_saves_what_answers_depend_on_and_the_model(covist, folder, model_folder):
    rows = [{"image": "photos/one.png", "question": f"what is {number} ?"} for number in range(30)]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = ("--data", "mine.jsonl", "--model", model_folder, "--keep", 1, "--budgets", 300, "--max-new-tokens", 1)
    ran = covist("tune", *asked, "--dtype", "bfloat16", "--device", "cpu")
    assert ran.code == 0, ran.stderr
    saved = json.loads((folder / "covist.json").read_text())
    assert saved["loading"] == {"dtype": "bfloat16"}
    assert saved["origin"][TUNED_ON]["concentration"] == saved["concentration"]


def test_concentration_says_on_what_it_was_measured(covist, folder, model_folder):
    assert covist("concentration", "--images", "photos", "--model", model_folder, "--save", "covist.json").code == 0
    saved = json.loads((folder / "covist.json").read_text())
    assert saved["origin"][TUNED_ON]["concentration"] == saved["concentration"]
    assert saved["origin"][TUNED_ON]["name"] == model_folder.name


@pytest.mark.parametrize("command", ["run", "eval", "batch"])
def test_measurements_of_another_model_are_refused(covist, folder, model_folder, command):
    assert covist("concentration", "--images", "photos", "--model", model_folder, "--save", "covist.json").code == 0
    asked = {"eval": ("--limit", 1, "--methods", "covist-fixed")}.get(command, LOADING[command])
    ran = covist(command, *asked, "--config", "covist.json", "--model", "tiny")
    assert ran.code == 2 and "the concentration reference" in ran.stderr and "is not that of this model" in ran.stderr
    assert not (folder / "answers" / "_manifest.json").exists()


@pytest.mark.parametrize(("budget", "told"), [(600, True), (16, False)])
def test_batch_says_once_that_a_budget_is_above_the_tokens(covist, folder, model_folder, budget, told):
    for number in range(2):
        (folder / "photos" / f"{number}.png").write_bytes((folder / "photos" / "one.png").read_bytes())
    ran = covist("batch", *LOADING["batch"], "--model", model_folder, "--budget", budget, "--json")
    assert ran.code == 0, ran.stderr
    reason = "a budget of all tokens or more leaves the image uncompressed (budget 600)"
    assert (f"3 of 3 answers without compression: {reason}" in ran.stderr) == told
    assert ran.stderr.count("without compression") == told
    assert ran.json["whole"] == (3 if told else 0)


def test_an_unreadable_folder_is_one_line(covist, folder):
    (folder / "model").mkdir()
    (folder / "model" / "config.json").mkdir()
    ran = covist("run", "--model", folder / "model")
    assert ran.code == 2 and "config.json' cannot be read" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
