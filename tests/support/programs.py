"""Batch jobs as programs, to be killed: what they read, how they start, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import covist
from covist import tiny
from covist.batch.answers import RowAnswer
from support.batches import answers_of, write_rows

TESTS = Path(__file__).parent.parent
PATIENCE = 600.0  # seconds, for a busy machine


def start(*command: object) -> subprocess.Popen:
    places = os.pathsep.join([str(Path(covist.__file__).parent.parent), str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, command)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )


def hear_ctrl_c() -> None:
    """A shell makes what it starts in the background deaf to it, and so everything that this starts in turn."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def without_times(out: Path) -> list[RowAnswer]:
    return [replace(answer, seconds=None) for answer in answers_of(out)]


def scenes(folder: Path, count: int) -> Path:
    """Questions about a few images, every row with an id and words of its own."""
    for seed in range(8):
        tiny.scene_image(tiny.sample_scene(seed)).save(folder / f"{seed}.png")
    asked = [item.question for item in tiny.questions_for(tiny.sample_scene(0))]
    rows = [
        {"id": f"row-{number}", "image": f"{number % 8}.png", "prompt": asked[number // 8 % len(asked)]}
        for number in range(count)
    ]
    rows[count // 2]["image"] = "missing.png"
    return write_rows(folder / "rows.jsonl", rows)
