"""`covist eval --data`: your own questions, from a file."""

import json

import pytest

from covist import tiny

QUESTIONS = ("where is the blue square?", "is there a red circle?")


@pytest.fixture
def data(tmp_path, image):
    """A line with an answer and one without, about the same image."""
    rows = [{"image": image.name, "question": QUESTIONS[0], "answer": "top left", "metric": "contains"}]
    rows += [{"image": image.name, "question": QUESTIONS[1]}]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_own_questions_are_scored_as_the_bundled_ones(covist, model_folder, data, tmp_path):
    asked = ("--data", data, "--model", model_folder, "--methods", "random,uniform", "--budgets", "24,10%")
    ran = covist("eval", *asked, "--max-new-tokens", 3, "--out", tmp_path / "out")
    assert ran.code == 0, ran.stderr
    assert "mine: 2 questions about 1 image" in ran.stdout
    for text in ("random", "10%", "same answers", "Holm", "No difference is called clear with fewer than 30"):
        assert text in ran.stdout
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(stored["results"][0]["families"]) == {"contains", "agreement"}
    assert {row["budget"] for row in stored["results"]} == {576, 24, "10%"}
    assert (tmp_path / "out" / "retention.png").stat().st_size > 1000


def test_without_answers_the_table_is_about_agreement(covist, model_folder, data):
    data.write_text(data.read_text().splitlines()[1])
    asked = ("--data", data, "--model", model_folder, "--methods", "uniform", "--budgets", "24")
    ran = covist("eval", *asked, "--max-new-tokens", 3)
    assert "agreement" in ran.stdout and "accuracy" not in ran.stdout and "retention" not in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--data", "{data}", "--suite", "scenes"), "give either --suite or --data, not both"),
        (("--metric", "anls"), "--metric is for --data"),
        (("--data", "nowhere.jsonl"), "cannot read nowhere.jsonl"),
        (("--data", "{data}", "--metric", "bleu"), "bleu"),
    ],
)
def test_bad_requests_are_refused_before_a_model_is_loaded(covist, data, arguments, complaint):
    given = [argument.format(data=data) for argument in arguments]
    ran = covist("eval", *given, "--model", "nowhere/nothing")
    assert ran.code == 2 and complaint in ran.stderr and "nowhere/nothing" not in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_bad_line_is_one_line_on_stderr(covist, data):
    data.write_text(data.read_text() + '\n{"image": "gone.png", "question": "what?"}')
    ran = covist("eval", "--data", data, "--model", "nowhere/nothing")
    assert ran.code == 2 and "mine.jsonl line 3: image " in ran.stderr and "gone.png does not exist" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_the_embedded_model_answers_its_own_demonstration(covist, tmp_path):
    image, question, answer = tiny.demo()
    image.save(tmp_path / "demo.png")
    row = {"image": "demo.png", "question": question, "answer": answer}
    (tmp_path / "demo.jsonl").write_text(json.dumps(row))
    ran = covist("eval", "--data", tmp_path / "demo.jsonl", "--methods", "covist-fixed", "--budgets", "64", "--json")
    assert [row["accuracy"] for row in ran.json["results"]] == [100, 100]
