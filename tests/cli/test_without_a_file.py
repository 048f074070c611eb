"""Every command that takes a model runs on types that no family file names, without any option for it."""

import json

import pytest
from support.families import smooth_image
from support.without_a_file import BUILDERS, saved

from covist.families.registry import served_classes
from covist.request.checkpoints import served

BUDGET = ("--budget", 12)


@pytest.fixture(scope="module", params=BUILDERS)
def model(request, tmp_path_factory):
    return saved(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        smooth_image(150, 120, number).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def data(images):
    rows = [{"image": f"photos/{number}.png", "question": "what is this ?", "answer": "this"} for number in range(3)]
    path = images.parent / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_no_file_names_it(model):
    name, family, _ = served(str(model))
    assert family.name == "generic" and name not in served_classes()


def test_run_and_show(covist, model, images, tmp_path):
    asked = ("--model", model, "--image", images / "0.png", "--prompt", "what is this ?", *BUDGET)
    ran = covist("run", *asked, "--max-new-tokens", 3, "--json")
    assert ran.code == 0, ran.stderr
    assert ran.json["results"][0]["mean_tokens"] == 12
    drawn = tmp_path / "kept.png"
    ran = covist("show", *asked, "--out", drawn)
    assert ran.code == 0 and drawn.stat().st_size > 10_000, ran.stderr


def test_eval_and_tune(covist, model, data):
    ran = covist("eval", "--model", model, "--data", data, "--methods", "covist-max,random", "--budgets", 12, "--json")
    assert ran.code == 0, ran.stderr
    ran = covist("tune", "--model", model, "--data", data, "--keep", 30)
    assert "answers about images" in ran.stdout + ran.stderr, ran.stderr  # random weights answer nothing right


def test_batch(covist, model, images, tmp_path):
    ran = covist(
        "batch", images, "--model", model, "--prompt", "what is this ?", *BUDGET, "--out", tmp_path / "answers"
    )
    assert ran.code == 0, ran.stderr
    assert "3 rows" in ran.stdout + ran.stderr


def test_doctor(covist, model):
    ran = covist("doctor", "--model", model)
    assert ran.code == 0 and "1920 x 1080" in ran.stdout, ran.stdout
