"""`covist batch --ray` as a program: answers are those without Ray, whatever is killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.batches import rows_on_disk
from support.programs import PATIENCE, scenes, start, without_times

pytest.importorskip("ray", reason="Ray is not installed; make test-ray has it")
pytestmark = pytest.mark.ray

ROWS, PART_ROWS = 2000, 100
ON_RAY = ("--ray", "--workers", 2)


class Batch:
    """One command line, of which parts are killed."""

    def __init__(self, path: Path, out: Path, *options: object):
        self.out = out
        self.process = start("covist", "batch", path, "--out", out, "--part-rows", PART_ROWS, *options)
        self.family: set[psutil.Process] = set()

    def wait_for(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline, "it never came so far"
            self.family.update(psutil.Process(self.process.pid).children(recursive=True))
            time.sleep(0.05)

    def wait_for_rows(self, count: int) -> None:
        self.wait_for(lambda: rows_on_disk(self.out, PART_ROWS) >= count)

    def workers(self) -> list[psutil.Process]:
        """The processes that hold a model."""
        return [one for one in self.family if one.is_running() and any("BatchWorker" in part for part in one.cmdline())]

    def finish(self) -> tuple[int, str]:
        _, complaint = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, complaint

    def leaves_nothing_behind(self) -> bool:
        return not psutil.wait_procs(self.family, timeout=PATIENCE)[1]


def test_workers_killed_twice_and_the_driver_once_over_2000_rows(tmp_path):
    path = scenes(tmp_path, ROWS)
    options = ("--max-new-tokens", 2, "--budget", 16)
    killed = Batch(path, tmp_path / "killed", *options, *ON_RAY)
    for moment in (200, 500):
        killed.wait_for_rows(moment)
        killed.workers()[0].kill()
    killed.wait_for_rows(900)
    killed.process.send_signal(signal.SIGKILL)
    assert killed.finish()[0] == -signal.SIGKILL
    assert killed.leaves_nothing_behind()
    for job in (
        Batch(path, tmp_path / "killed", *options, *ON_RAY),
        Batch(path, tmp_path / "whole", *options),  # without Ray
    ):
        code, complaint = job.finish()
        assert code == 0, complaint
    found = without_times(tmp_path / "killed")
    assert len({answer.id for answer in found}) == len(found) == ROWS
    assert sum(answer.error is not None for answer in found) == 1
    assert found == without_times(tmp_path / "whole")
    manifests = [json.loads((tmp_path / name / "_manifest.json").read_text()) for name in ("killed", "whole")]
    assert manifests[0] == manifests[1]


def test_ctrl_c_says_how_to_go_on_and_leaves_no_process(tmp_path, small_model):
    path = scenes(tmp_path, ROWS)
    job = Batch(path, tmp_path / "out", "--model", small_model, "--concentration", 0.05, "--ray")
    job.wait_for_rows(1)
    job.process.send_signal(signal.SIGINT)
    code, complaint = job.finish()
    assert code == 130 and "continues from there" in " ".join(complaint.split())
    assert "Traceback" not in complaint
    assert job.leaves_nothing_behind()


def test_a_model_that_workers_do_not_have_is_named_in_one_line(tmp_path):
    job = Batch(scenes(tmp_path, 1), tmp_path / "out", "--model", tmp_path / "nowhere", "--ray")
    code, complaint = job.finish()
    assert code == 2
    assert complaint.startswith("covist: a worker of --ray could not start: unknown model ")
    assert complaint.count("\n") == 1
