"""Methods and families of other packages: the example plugin, really installed, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parent.parent / "examples" / "plugin"
BROKEN = {
    "missing": "import nothing_of_this_name",
    "taken": "import covist\n\n\n@covist.register_method\nclass Other(covist.Method):\n    name = 'random'\n",
}


def install(folder: Path, target: Path) -> Path:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(folder)], check=True)
    return target


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    return install(PLUGIN, tmp_path_factory.mktemp("site"))


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_an_installed_method_is_listed_and_runs_and_an_installed_family_serves_its_model(installed):
    program = """
import json, covist
from covist.eval import evaluate
from covist.api.setup import Setup
from covist.request.answer import ask
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel
small = covist.tiny.build_random(size=covist.tiny.Size(vision_layers=2, text_layers=1, decoder_layers=2))
image, question, _ = covist.tiny.demo()
loaded = LoadedModel("small", *small)
answer = ask(loaded, prepare(loaded, [image], question), Setup("loudest+sca", 16), 1)
scores = evaluate("loudest,loudest-twice,growing", "16", limit=1, model=loaded).scores
print(json.dumps([answer.mean_tokens, {score.method: score.mean_tokens for score in scores}]))

model, processor, clip = small
class MyLlavaForConditionalGeneration(type(model)):
    pass
model.__class__ = MyLlavaForConditionalGeneration
inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
with covist.compress(model, processor, budget=16, clip=clip, concentration=0.1) as handle:
    model.generate(**inputs, max_new_tokens=1)
print(json.dumps([covist.available_families()["my-llava"], handle.report.mean_tokens]))
"""
    listed = python(installed, "-m", "covist", "methods", "--json")
    assert "loudest" in [entry["name"] for entry in json.loads(listed.stdout)["methods"]], listed.stderr
    ran = python(installed, "-c", program)
    method, family = map(json.loads, ran.stdout.splitlines())
    counts = {"vanilla": 576.0, "loudest": 16.0, "loudest-twice": 16.0, "growing": 16.0}
    assert method == [16.0, counts], ran.stderr
    assert family == [["MyLlavaForConditionalGeneration"], 16.0], ran.stderr


def test_plugins_that_fail_are_left_out_with_a_note_and_everything_else_works(tmp_path):
    site = tmp_path / "site"
    for kind, code in BROKEN.items():
        folder = tmp_path / kind
        folder.mkdir()
        text = (PLUGIN / "pyproject.toml").read_text(encoding="utf-8").replace("loudest", f"broken_{kind}")
        (folder / "pyproject.toml").write_text(text, encoding="utf-8")
        (folder / f"covist_broken_{kind}.py").write_text(code, encoding="utf-8")
        install(folder, site)
    ran = python(site, "-m", "covist", "methods", "--json")
    assert "covist-fixed" in [entry["name"] for entry in json.loads(ran.stdout)["methods"]]
    for kind in BROKEN:
        assert f"plugin 'broken_{kind}' of package covist-broken_{kind} is left out" in ran.stderr
