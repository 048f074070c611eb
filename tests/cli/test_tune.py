"""`covist tune`, and its file in every command that takes it."""

import json

import pytest

from covist import Setup
from covist.budget import Count
from covist.serve import server as serving_server

SMALL = ("--max-new-tokens", 2)


@pytest.fixture
def questions(tmp_path, image):
    """Writes so many questions about copies of one image: the same answer everywhere."""

    def write(count):
        rows = []
        for number in range(count):
            (tmp_path / f"{number}.png").write_bytes(image.read_bytes())
            rows.append({"image": f"{number}.png", "question": "where is the blue square?"})
        path = tmp_path / "mine.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    return write


@pytest.fixture
def data(questions):
    return questions(18)


@pytest.fixture
def tuned(tmp_path):
    path = tmp_path / "covist.json"
    Setup("covist-pro", 40, 0.1).save(path)
    return path


def test_the_smallest_budget_that_passes_is_saved_with_what_it_saves(covist, model_folder, data, tmp_path):
    file = tmp_path / "found.json"
    asked = ("--data", data, "--model", model_folder, "--keep", 60, "--budgets", "576", "--save", file)
    ran = covist("tune", *asked, *SMALL)
    assert ran.code == 0, ran.stderr
    for text in ("agreement", "passes", "visual tokens", "KV cache", "prefill FLOPs", "found.json"):
        assert text in ran.stdout
    assert Setup.load(file).budget == Count(576)


def test_when_no_budget_suffices_nothing_is_saved_and_the_code_is_3(covist, model_folder, questions, tmp_path):
    """An untrained model answers differently with one token."""
    file = tmp_path / "none.json"
    asked = ("--data", questions(8), "--model", model_folder, "--keep", 60, "--budgets", "1", "--save", file)
    ran = covist("tune", *asked, *SMALL)
    assert ran.code == 3 and not file.exists(), ran.stdout
    assert "no budget suffices to keep 60 %" in ran.stdout
    as_json = covist("tune", *asked, *SMALL, "--json")
    assert as_json.code == 3 and as_json.json["chosen"] is None and as_json.json["file"] is None


def test_data_that_cannot_suffice_are_refused_before_a_model_is_loaded(covist, questions, tmp_path):
    file = tmp_path / "none.json"
    ran = covist("tune", "--data", questions(30), "--model", "nowhere/nothing", "--save", file)
    assert ran.code == 2 and ran.stderr.count("\n") == 1 and not file.exists()
    assert "30 images can show at most 89.8 %, even if no answer changes" in ran.stderr
    assert "give about 330 images of this kind, or a lower keep" in ran.stderr and "nowhere" not in ran.stderr
    assert covist("tune", "--data", questions(30), "--keep", 89.8, "--model", "nowhere/nothing").code == 2
    assert (
        "nowhere/nothing"
        in covist("tune", "--data", questions(30), "--keep", 89.8, "--model", "nowhere/nothing").stderr
    )


def test_a_file_with_other_settings_is_kept(covist, model_folder, data, tmp_path):
    file, own = tmp_path / "found.json", '{"covist_settings": 1, "budget": 7}'
    asked = ("tune", "--data", data, "--model", model_folder, "--keep", 60, "--budgets", "576", "--save", file, *SMALL)
    file.write_text(own)
    first = covist(*asked)
    assert first.code == 0 and "saved in" in first.stdout, first.stderr
    assert f"(the one before is {file}.1) to use it: covist run --config {file}" in " ".join(first.stdout.split())
    assert (tmp_path / "found.json.1").read_text() == own and Setup.load(file).budget == Count(576)
    again = covist(*asked, "--json")
    assert again.json["file"] == str(file) and again.json["backup"] is None, "nothing had changed"
    file.write_text("mine")
    assert covist(*asked, "--json").json["backup"] == f"{file}.2"
    assert [path.name for path in sorted(tmp_path.glob("found*"))] == ["found.json", "found.json.1", "found.json.2"]


def test_a_family_that_is_never_right_is_named(covist, model_folder, questions, tmp_path):
    path = questions(16)
    rows = [{**json.loads(line), "answer": "xyz", "family": "never"} for line in path.read_text().splitlines()]
    path.write_text("\n".join(map(json.dumps, rows)))
    ran = covist("tune", "--data", path, "--model", model_folder, "--keep", 40, "--budgets", "576", *SMALL)
    assert ran.code == 3
    assert "answers no question of never right" in " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--keep", 100), "keep must be a percentage"),
        (("--budgets", "0"), "budget must be"),
        (("--max-budget", "many"), "budget must be"),
        (("--method", "nonsense"), "unknown method 'nonsense'"),
        (("--save", "covist.txt"), "its name must end in .json"),
    ],
)
def test_bad_requests_are_refused_before_a_model_is_loaded(covist, arguments, complaint):
    ran = covist("tune", *arguments, "--model", "nowhere/nothing")
    assert ran.code == 2 and complaint in ran.stderr and "nowhere" not in ran.stderr


def test_run_uses_the_file_and_options_come_before_it(covist, model_folder, tuned):
    ran = covist("run", "--model", model_folder, "--config", tuned, "--json", *SMALL).json
    assert (ran["results"][0]["method"], ran["budget"]) == ("covist-pro", 40)
    assert ran["results"][0]["mean_tokens"] == pytest.approx(40, abs=1)
    own = covist("run", "--model", model_folder, "--config", tuned, "--budget", 16, "--strategy", "fixed", "--json")
    assert (own.json["results"][0]["method"], own.json["results"][0]["mean_tokens"]) == ("covist-fixed", 16)


def test_show_uses_the_file(covist, model_folder, tuned, tmp_path):
    ran = covist("show", "--model", model_folder, "--config", tuned, "--out", tmp_path / "kept.svg", "--json", *SMALL)
    assert (ran.json["results"][0]["method"], ran.json["budget"]) == ("covist-pro", 40)


def test_eval_and_bench_use_the_file(covist, model_folder, tuned):
    ran = covist("eval", "--model", model_folder, "--config", tuned, "--limit", 1, "--json").json
    assert [(row["method"], row["budget"]) for row in ran["results"]] == [("vanilla", 576), ("covist-pro", 40)]
    assert ran["settings"]["concentration"] == 0.1
    volume = ("--prompts", 1, "--warmup", 0, "--repetitions", 1, *SMALL)
    timed = covist("bench", "--model", model_folder, "--config", tuned, *volume, "--json").json
    assert [(row["method"], row["budget"]) for row in timed["results"]] == [("vanilla", None), ("covist-pro", 40)]


def test_serve_uses_the_file(covist, model_folder, tuned, monkeypatch):
    started = []
    monkeypatch.setattr(serving_server, "run_server", lambda service, *rest, **options: started.append(service))
    monkeypatch.setattr(
        "covist.serve.spec.bundled_concentration", lambda loaded: pytest.fail("the file has a reference")
    )
    ran = covist("serve", "--model", model_folder, "--config", tuned)
    assert ran.code == 0, ran.stderr
    (service,) = started
    assert str(service.default) == "covist-pro 40"
    service.close()


@pytest.mark.parametrize("command", ["run", "show", "eval", "bench", "tune", "serve"])
def test_a_bad_file_is_refused_before_a_model_is_loaded(covist, command, tmp_path):
    (tmp_path / "bad.json").write_text('{"covist_settings": 1, "budgte": 3}')
    ran = covist(command, "--config", tmp_path / "bad.json", "--model", "nowhere/nothing")
    assert ran.code == 2 and "bad.json: unknown setting budgte" in ran.stderr and "nowhere/nothing" not in ran.stderr
