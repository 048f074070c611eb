"""Running a program to its end, or to an interruption."""

from __future__ import annotations

import subprocess
import sys

import pytest

from covist.errors import CovistError
from covist.reproduce.running import LOG, failure, run_job
from covist.reproduce.runs import Job


def python(code: str, folder) -> Job:
    return Job("model/method-64", folder, (sys.executable, "-c", code))


def test_the_output_of_a_program_goes_into_its_log(tmp_path):
    job = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", tmp_path / "new" / "run")
    assert run_job(job) == 3
    assert set((job.folder / LOG).read_text().split()) == {"out", "err"}
    said = failure(job, 3, is_finished=False)
    assert said is not None and said.startswith("model/method-64 failed: exit code 3, last line of the log: ")


def test_an_end_without_results_is_a_failure_and_one_with_results_is_none(tmp_path):
    job = python("print('Error during evaluation')", tmp_path)
    assert run_job(job) == 0
    assert failure(job, 0, is_finished=True) is None
    assert "no results, last line of the log: Error during evaluation" in (failure(job, 0, is_finished=False) or "")


def test_an_interruption_ends_the_program_too(tmp_path, monkeypatch):
    started = []
    wait = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if process not in started:
            started.append(process)
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_job(python("import time; time.sleep(600)", tmp_path))
    assert started[0].poll() is not None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CovistError, match="cannot write to .*file"):
        run_job(python("pass", tmp_path / "file" / "run"))
