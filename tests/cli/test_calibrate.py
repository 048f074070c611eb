"""`covist calibrate`, and its file in every command that takes it."""

import json

import pytest

import covist as package
from covist import Setup
from covist.eval import read_data
from covist.methods.published.fitprune import EMBEDDED
from covist.request.loading import load_model
from covist.serve import server as serving_server
from covist.serve.schema import CompressionChoice
from covist.serve.settings import setup_of

SMALL = ("--max-new-tokens", 2)
LAYERS, TOKENS = 4, 576  # of the model folder


@pytest.fixture
def data(tmp_path, image):
    """Three questions without answers about one image."""
    questions = ("where is the blue square?", "what color is the circle?", "how many circles are there?")
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"image": image.name, "question": text}) for text in questions))
    return path


@pytest.fixture
def file(tmp_path):
    """A calibration that no other default looks like."""
    path = tmp_path / "fit.json"
    Setup("fitprune", 288, calibration=package.schedule.Calibration(((1.0, 0.5, 0.25, 0.25),))).save(path)
    return path


def test_the_counts_of_every_layer_are_measured_and_saved(covist, model_folder, data, tmp_path):
    file = tmp_path / "found.json"
    asked = ("--data", data, "--model", model_folder, "--budgets", "50%,300,10%", "--out", file)
    ran = covist("calibrate", *asked)
    assert ran.code == 0, ran.stderr
    for text in ("1 image, 3 questions", "alpha", "layer 3", "found.json"):
        assert text in ran.stdout
    assert "budgets not fitted, because the first layer alone exceeds them: 10%" in ran.stderr
    setup = Setup.load(file)
    assert (setup.method, setup.budget, setup.origin["made_by"]) == ("fitprune", None, "covist calibrate")
    for kept, share in zip(setup.calibration.kept, (0.5, 300 / TOKENS), strict=True):
        assert len(kept) == LAYERS and sum(kept) / LAYERS == pytest.approx(share, abs=0.01)
    assert setup.calibration != EMBEDDED


def test_one_budget_is_saved_with_the_file_which_runs_as_measured(covist, model_folder, data, tmp_path):
    file = tmp_path / "found.json"
    found = covist("calibrate", "--data", data, "--model", model_folder, "--budgets", 288, "--out", file, "--json").json
    assert found["file"] == str(file) and found["setup"]["budget"] == 288 and found["unreachable"] == []
    (fitted,) = found["fitted"]
    ran = covist("run", "--model", model_folder, "--config", file, "--json", *SMALL).json
    counts = ran["results"][0]["report"]["images"][0]["tokens_per_layer"]
    assert counts == pytest.approx([share * TOKENS for share in fitted["kept"]], abs=4)


def test_a_calibration_does_not_depend_on_earlier_runs(covist, model_folder, data):
    suite = read_data(data)
    first, second = (package.eval.calibrate(suite=suite, budgets="50%", model=str(model_folder)) for _ in range(2))
    assert first.setup == second.setup and first.examples == 3
    plain = load_model(str(model_folder))
    package.eval.calibrate(suite=suite, budgets="50%", model=plain)
    assert package.Compression.of(plain.model) is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--method", "fastv"), "fastv has nothing to calibrate; choose fitprune"),
        (("--method", "fitprune,fastv"), "has nothing to calibrate"),
        (("--method", "nonsense"), "unknown method 'nonsense'"),
        (("--budgets", "0"), "budget must be"),
        (("--budgets", ","), "no budget given"),
        (("--budgets", "auto"), "does not measure coverage"),
        (("--out", "covist.txt"), "its name must end in .json"),
    ],
)
def test_bad_requests_are_refused_before_a_model_is_loaded(covist, arguments, complaint):
    ran = covist("calibrate", *arguments, "--model", "nowhere/nothing")
    assert ran.code == 2 and complaint in ran.stderr and "nowhere" not in ran.stderr


def test_budgets_that_no_layer_is_left_for_are_refused(covist, model_folder, data, tmp_path):
    file = tmp_path / "none.json"
    ran = covist("calibrate", "--data", data, "--model", model_folder, "--budgets", "64", "--out", file)
    assert ran.code == 2 and "no budget can be reached" in ran.stderr and not file.exists()


def test_run_eval_and_bench_use_the_file(covist, model_folder, file):
    expected = [576, 288, 144, 144]
    ran = covist("run", "--model", model_folder, "--config", file, "--json", *SMALL).json
    assert ran["results"][0]["report"]["images"][0]["tokens_per_layer"] == expected
    scored = covist("eval", "--model", model_folder, "--config", file, "--limit", 1, "--json").json
    assert scored["settings"]["calibration"] == {"kept": [[1.0, 0.5, 0.25, 0.25]]}
    assert [(row["method"], row["mean_tokens"]) for row in scored["results"][1:]] == [("fitprune", 288)]
    volume = ("--prompts", 1, "--warmup", 0, "--repetitions", 1, *SMALL)
    timed = covist("bench", "--model", model_folder, "--config", file, *volume, "--json").json
    assert timed["results"][1]["mean_tokens"] == 288


def test_serve_uses_the_file_also_where_a_request_names_the_method(covist, model_folder, file, monkeypatch):
    started = []
    monkeypatch.setattr(serving_server, "run_server", lambda service, *rest, **options: started.append(service))
    monkeypatch.setattr("covist.serve.spec.bundled_concentration", lambda loaded: 0.1)
    ran = covist("serve", "--model", model_folder, "--config", file)
    assert ran.code == 0, ran.stderr
    (service,) = started
    asked = setup_of(service._handle, CompressionChoice(method="fitprune"))
    assert (service.default.method, asked.calibration.kept[0][1]) == ("fitprune", 0.5)
    assert service._handle.settings.method.calibration.kept[0] == (1.0, 0.5, 0.25, 0.25)
    service.close()


def test_batch_uses_the_file_and_remembers_it(covist, model_folder, file, image, tmp_path):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "answers"
    rows.write_text(json.dumps({"image": image.name, "prompt": "where is the blue square?"}))
    asked = ("batch", rows, "--out", out, "--model", model_folder, "--config", file, "--format", "jsonl", *SMALL)
    ran = covist(*asked, "--json")
    assert ran.code == 0, ran.stderr
    assert ran.json["tokens_after"] == 288
    assert json.loads((out / "_manifest.json").read_text())["settings"]["calibration"]["kept"][0][1] == 0.5
    Setup("fitprune", 288).save(file)
    again = covist(*asked)
    assert again.code == 2 and "other settings (calibration" in again.stderr


def test_another_method_leaves_the_calibration_alone(covist, model_folder, file):
    ran = covist("run", "--model", model_folder, "--config", file, "--method", "fastv", "--json", *SMALL)
    assert ran.code == 0 and ran.json["results"][0]["method"] == "fastv"
