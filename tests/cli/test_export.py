"""`covist export`: files for lmms-eval, and the command that runs them."""

import json


def test_the_task_is_written_and_named(covist, tmp_path):
    ran = covist("export", "--out", tmp_path / "task", "--limit", 1)
    assert ran.code == 0, ran.stderr
    assert f"--tasks covist_scenes --include_path {tmp_path / 'task'}" in ran.stdout
    assert (tmp_path / "task" / "covist_scenes.yaml").exists()


def test_the_suite_of_the_other_model_names_that_model(covist, tmp_path):
    ran = covist("export", "--suite", "scenes-hd", "--out", tmp_path / "task", "--limit", 1)
    assert "pretrained=tiny-next" in ran.stdout and "--tasks covist_scenes_hd" in ran.stdout


def test_json_says_what_was_written(covist, tmp_path):
    ran = covist("export", "--out", tmp_path / "task", "--limit", 1, "--json")
    expected = {"format": "lmms-eval", "suite": "scenes", "task": "covist_scenes", "directory": str(tmp_path / "task")}
    assert ran.json == expected


def test_an_unknown_suite_and_a_bad_limit_are_refused(covist, tmp_path):
    for wrong in (("--suite", "nonsense"), ("--limit", 0)):
        ran = covist("export", "--out", tmp_path / "task", *wrong)
        assert ran.code == 2 and ran.stderr.startswith("covist: ") and ran.stderr.count("\n") == 1
        assert not (tmp_path / "task").exists()


def test_your_own_data_are_exported(covist, tmp_path, image):
    rows = [{"image": image.name, "question": "where is it?", "answer": "top", "family": "place"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ran = covist("export", "--data", tmp_path / "mine.jsonl", "--out", tmp_path / "task")
    assert ran.code == 0, ran.stderr
    assert "pretrained=MODEL,budget=64 --tasks covist_mine" in ran.stdout
    (line,) = (tmp_path / "task" / "questions.jsonl").read_text().splitlines()
    written = json.loads(line)
    assert (written["question"], written["answers"], written["metric"]) == ("where is it?", ["top"], "exact")
    assert (tmp_path / "task" / written["images"][0]).exists()
    both = covist("export", "--data", tmp_path / "mine.jsonl", "--suite", "scenes", "--out", tmp_path / "other")
    assert both.code == 2 and "either --suite or --data" in both.stderr


def test_data_without_answers_cannot_be_exported(covist, tmp_path, image):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"image": image.name, "question": "where is it?"}))
    ran = covist("export", "--data", tmp_path / "mine.jsonl", "--out", tmp_path / "task")
    assert ran.code == 2 and "give an answer to export it" in ran.stderr and not (tmp_path / "task").exists()
