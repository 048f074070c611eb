"""`--plugin`: methods of one's own in every command that takes a method, and in the processes that it starts."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys

import pytest
from support.batches import answers_of, write_rows
from support.own_method import CODE

from covist import CovistError, tiny
from covist.api.setup import Setup
from covist.batch.spec import WorkerSpec
from covist.cli.app import COMMANDS
from covist.methods import registry
from covist.methods.registry import available_methods
from covist.plugins import Plugin
from covist.serve.spec import ServiceSpec

ELSEWHERE = {"reproduce", "vllm-args"}
"""Their methods run in other programs, or are those of the paper."""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(CODE)
    return path


def test_every_command_that_takes_a_method_takes_a_plugin():
    taking = {
        name
        for name, command in COMMANDS.items()
        if {"method", "methods"}.intersection(inspect.signature(command).parameters) or name == "methods"
    }
    assert {name for name in taking if "plugin" in inspect.signature(COMMANDS[name]).parameters} == taking - ELSEWHERE


def test_a_file_of_ones_own_is_listed_planned_and_run(covist, plugin, model_folder, image):
    given = ("--plugin", plugin)
    assert "foremost-of-all" in [entry["name"] for entry in covist("methods", *given, "--json").json["methods"]]
    assert "foremost-of-all" in covist("methods", "foremost-of-all", *given).stdout
    assert covist("plan", "--method", "foremost-of-all", *given, "--json").json["budget"] == 64
    asked = ("--image", image, "--prompt", "where?", "--model", model_folder, "--max-new-tokens", 1)
    ran = covist("run", "--method", "foremost-of-all", *asked, *given, "--json")
    assert ran.code == 0 and ran.json["results"][0]["mean_tokens"] == 64, ran.stderr


def test_without_the_plugin_the_method_is_unknown_and_the_option_is_named(covist):
    ran = covist("plan", "--method", "foremost-of-all")
    assert ran.code == 2 and "unknown method 'foremost-of-all'" in ran.stderr and "--plugin" in ran.stderr


def test_a_module_is_given_by_its_name(covist, plugin, monkeypatch):
    plugin.rename(plugin.with_name("module_of_ones_own.py"))
    monkeypatch.syspath_prepend(plugin.parent)
    ran = covist("plan", "--plugin", "module_of_ones_own", "--method", "foremost-of-all")
    assert ran.code == 0, ran.stderr


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("gone.py", None, "plugin gone.py does not exist"),
        ("no_module_of_this_name", None, "no such module; give a file with its ending, no_module_of_this_name.py"),
        ("json.nothing", None, "plugin json.nothing: there is no such module"),
        ("my.py", "import covist\n1 / 0\n", "plugin my.py line 2: ZeroDivisionError: division by zero"),
        ("my.py", "import nothing_there\n", "plugin my.py line 1: ModuleNotFoundError: No module named 'nothing"),
        ("my.py", "def\n", "plugin my.py: SyntaxError: invalid syntax (my.py, line 1)"),
        ("my.py", "raise SystemExit(3)\n", "plugin my.py line 1: SystemExit: 3"),
        ("my.py", "\0", "plugin my.py: "),
        ("my.py", CODE.replace("foremost-of-all", "a+b"), "plugin my.py line 5: Foremost cannot be named 'a+b'"),
        ("my.py", CODE.replace("foremost-of-all", "random"), "a method named 'random' is already registered by"),
    ],
    ids=lambda value: None,
)  # fmt: skip
def test_a_plugin_that_cannot_be_run_is_refused_in_one_line(covist, tmp_path, monkeypatch, name, code, said):
    monkeypatch.chdir(tmp_path)
    if code is not None:
        (tmp_path / name).write_text(code)
    ran = covist("plan", "--plugin", name)
    assert ran.code == 2 and ran.stdout == "" and ran.stderr.count("\n") == 1, ran.stderr
    assert said in ran.stderr


def test_a_plugin_that_comes_before_the_methods_of_covist_cannot_take_their_names(tmp_path):
    (tmp_path / "my.py").write_text(CODE.replace("foremost-of-all", "random"))
    program = "from covist.plugins import Plugin; Plugin.of('my.py').load()"
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "a method named 'random' is already registered by covist.methods.random" in ran.stderr.splitlines()[-1]


def test_settings_name_the_method_but_never_run_code(covist, plugin, tmp_path):
    settings = tmp_path / "covist.json"
    settings.write_text(json.dumps({"covist_settings": 1, "method": "foremost-of-all", "budget": 64}))
    command = ("run", "--config", settings, "--max-new-tokens", 1)
    ran = covist(*command)
    assert ran.code == 2 and "unknown method 'foremost-of-all'" in ran.stderr
    settings.write_text(json.dumps({"covist_settings": 1, "method": "random", "plugin": str(plugin)}))
    refused = covist(*command)
    assert refused.code == 2 and "plugin" in refused.stderr and "foremost-of-all" not in available_methods()


def test_a_batch_runs_it_and_a_changed_plugin_is_another_setting(covist, plugin, model_folder, image, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "a", "image": image.name, "prompt": "where?"}])
    asked = ("--model", model_folder, "--max-new-tokens", 1, "--method", "foremost-of-all", "--plugin", plugin)
    assert covist("batch", rows, "--out", tmp_path / "out", *asked).code == 0
    (answer,) = answers_of(tmp_path / "out")
    assert (answer.tokens_after, answer.error) == (64, None)
    registry._METHODS.pop("foremost-of-all")
    plugin.write_text(CODE.replace("range(count)", "range(1, count + 1)"))
    again = covist("batch", rows, "--out", tmp_path / "out", *asked)
    assert again.code == 2 and "was made with other settings (plugin: ['my.py " in again.stderr


def test_a_mistake_in_it_fails_rows_in_its_own_words(covist, plugin, model_folder, image, tmp_path):
    plugin.write_text(CODE.replace("list(range(count))", "[0] * count"))
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "a", "image": image.name, "prompt": "where?"}])
    asked = ("--model", model_folder, "--max-new-tokens", 1, "--method", "foremost-of-all", "--plugin", plugin)
    assert covist("batch", rows, "--out", tmp_path / "out", *asked).code == 3
    (answer,) = answers_of(tmp_path / "out")
    assert answer.error == (
        "method 'foremost-of-all' failed in select (my.py line 9): it returned token 0 64 times; "
        "every token may be kept once"
    )


WORKER = """
import pickle, sys
from pathlib import Path
from covist.methods.registry import available_methods
from covist.batch.worker import load
spec = pickle.loads(Path(sys.argv[1]).read_bytes())
load(spec)
print("foremost-of-all" in available_methods())
"""


def test_a_worker_in_another_process_gets_the_code_and_not_only_its_path(plugin, tmp_path):
    model, _, (clip, _) = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=2))
    tiny.save(model, clip, tmp_path / "model")
    made = Plugin.of(str(plugin))
    made.load()
    spec = WorkerSpec(str(tmp_path / "model"), setup=Setup("foremost-of-all"), plugins=(made,))
    (tmp_path / "spec").write_bytes(pickle.dumps(spec))
    plugin.unlink()
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, tmp_path / "spec"], capture_output=True, text=True, env={**os.environ}
    )
    assert ran.stdout.strip() == "True", ran.stderr


def test_a_service_runs_its_plugins_before_it_loads_a_model(plugin, monkeypatch):
    def load(*given):
        assert "foremost-of-all" in available_methods()
        raise CovistError("far enough")

    monkeypatch.setattr("covist.serve.spec.load_model", load)
    with pytest.raises(CovistError, match="far enough"):
        pickle.loads(pickle.dumps(ServiceSpec(plugins=(Plugin.of(str(plugin)),)))).build()
