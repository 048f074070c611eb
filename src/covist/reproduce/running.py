"""Run missing jobs, one program after another; the output of a program goes to a log next to its results."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from covist.errors import CovistError
from covist.reproduce.runs import LMMS_EVAL, Job

LOG = "run.log"


def check_programs(jobs: Sequence[Job]) -> None:
    """Refuse a missing program before the first run."""
    for program in dict.fromkeys(job.command[0] for job in jobs if job.command):
        if shutil.which(program) is None:
            hint = "; install it with pip install 'covist[lmms]', or give another one with --launcher"
            raise CovistError(f"program {program!r} was not found{hint if program == LMMS_EVAL else ''}")


def run_job(job: Job) -> int:
    """Run a job and return its exit code; an interruption also ends the program."""
    log = job.folder / LOG
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        file = log.open("w", encoding="utf-8")
    except OSError as error:
        raise CovistError(f"cannot write to {job.folder}: {(error.strerror or 'not a directory').lower()}") from None
    with file, subprocess.Popen(job.command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            raise


def failure(job: Job, code: int, is_finished: bool) -> str | None:
    """What went wrong with a job, if anything. lmms-eval exits with 0 after an error, so results must exist too."""
    if code == 0 and is_finished:
        return None
    log = job.folder / LOG
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    reason = f"exit code {code}" if code else "no results"
    return f"{job.name} failed: {reason}, last line of the log: {lines[-1] if lines else 'none'}; see {log}"
