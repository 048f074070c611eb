"""`covist export`: files for lmms-eval, and the command that runs them."""


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
