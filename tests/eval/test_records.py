"""The directory of answers: what a crash, a full disk or a second process may do to it."""

import json
import os
import resource
import subprocess
import sys
import warnings

import pytest
from support.programs import PATIENCE

from covist.budget import Count
from covist.errors import CovistError
from covist.eval.records import ItemAnswers, Records, Run

SETTINGS = {"suite": "scenes", "seed": 0, "concentration": None}
RUN = Run("covist-fixed", Count(64))
ANSWERED = [ItemAnswers(number, ["yes", "nö"], 0.5, 64.0, "call", written=[[1, 2], [3]]) for number in range(3)]


@pytest.fixture
def folder(tmp_path):
    """Three answers and their settings."""
    with Records(tmp_path / "out", SETTINGS) as records:
        for answered in ANSWERED:
            records.add(RUN, answered)
    return tmp_path / "out"


def answers_file(folder):
    (path,) = (folder / "answers").iterdir()
    return path


def opened(folder):
    with Records(folder, SETTINGS) as records:
        return records.runs(), records.of(RUN)


def test_answers_that_name_their_call_as_earlier_versions_did_are_read(folder):
    path = answers_file(folder)
    path.write_text(path.read_text().replace('"call":', '"sitting":'))
    assert opened(folder)[1] == {answered.image: answered for answered in ANSWERED}


def test_answers_are_read_as_they_were_written(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened(folder) == ([RUN], dict(enumerate(ANSWERED)))


@pytest.mark.parametrize(
    "damage",
    [
        b"\0" * 40,
        pytest.param(b"[" * 100_000, id="deep"),
        b"{",
        b"",
        b"null",
        b"{}",
        b'{"method": "covist-fixed", "budget": 64}',
        b"\xff\xfe",
        b"[]",
    ],
)
def test_a_damaged_line_costs_its_own_image_only_and_is_named_once(folder, damage):
    path = answers_file(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage + b"\n" + lines[2])
    with pytest.warns(UserWarning, match=r"covist-fixed@64.jsonl: 1 damaged line .* answered again"):
        runs, found = opened(folder)
    assert runs == [RUN] and found == {0: ANSWERED[0], 2: ANSWERED[2]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened(folder) == (runs, found)


@pytest.mark.parametrize(
    "change", [{"answers": "yes"}, {"image": "1"}, {"image": True}, {"seconds": None}, {"more": 1}, {"budget": [64]}]
)
def test_a_line_of_another_form_is_a_damaged_one(folder, change):
    path = answers_file(folder)
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="1 damaged line"):
        assert set(opened(folder)[1]) == {0, 2}


@pytest.mark.parametrize("content", ["", '{"sui', "null", "\0\0"])
def test_damaged_settings_are_those_of_the_summary(folder, content):
    (folder / "results.json").write_text(json.dumps({"settings": json.loads((folder / "settings.json").read_text())}))
    (folder / "settings.json").write_text(content)
    assert len(opened(folder)[1]) == 3
    assert json.loads((folder / "settings.json").read_text())["suite"] == "scenes"
    (folder / "settings.json").write_text(content)
    with pytest.raises(CovistError, match="holds answers with seed=0, not 1"):
        Records(folder, {**SETTINGS, "seed": 1})


@pytest.mark.parametrize("content", ["", '{"sui', "null"])
def test_damaged_settings_without_a_summary_say_what_to_do(folder, content):
    (folder / "settings.json").write_text(content)
    with pytest.raises(
        CovistError, match=r"settings.json is damaged.*delete it.*or choose another directory"
    ) as caught:
        Records(folder, SETTINGS)
    assert "\n" not in str(caught.value)
    (folder / "settings.json").unlink()
    assert len(opened(folder)[1]) == 3


def test_damaged_settings_without_answers_are_written_again(tmp_path):
    (tmp_path / "settings.json").write_text("")
    assert opened(tmp_path) == ([], {})
    assert json.loads((tmp_path / "settings.json").read_text())["suite"] == "scenes"


def test_settings_that_cannot_be_written_leave_the_old_ones(folder):
    before = (folder / "settings.json").read_text()
    with Records(folder, SETTINGS) as records:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
        try:
            with pytest.raises(CovistError, match="cannot write to .*: file too large"):
                records.store_setting("concentration", 0.25)
            with pytest.raises(CovistError, match="cannot write to .*: file too large"):
                records.add(RUN, ItemAnswers(3, ["x" * 100], 0.5, 64.0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (folder / "settings.json").read_text() == before
    assert sorted(path.name for path in folder.iterdir()) == ["answers", "lock", "settings.json"]
    assert set(opened(folder)[1]) == {0, 1, 2}


def test_two_processes_cannot_share_a_directory(folder):
    program = f"from covist.eval.records import Records; Records({str(folder)!r}, {SETTINGS!r})"
    with Records(folder, SETTINGS):
        with pytest.raises(CovistError, match="another covist eval or tune is running in"):
            Records(folder, SETTINGS)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
        assert ran.returncode and "another covist eval or tune is running in" in ran.stderr
    assert len(opened(folder)[1]) == 3


def test_a_directory_that_is_refused_is_free_again(folder):
    with pytest.raises(CovistError, match="holds answers with seed=0"):
        Records(folder, {**SETTINGS, "seed": 1})
    assert len(opened(folder)[1]) == 3


def test_a_killed_process_frees_its_directory(folder):
    program = f"""
import os
from covist.eval.records import Records
records = Records({str(folder)!r}, {SETTINGS!r})
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], timeout=PATIENCE)
    assert len(opened(folder)[1]) == 3
    assert os.path.exists(folder / "lock")
