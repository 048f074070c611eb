"""`kill -9` at any moment: afterwards there is exactly one row per id, equal to those of an undisturbed run."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.batches import FakeDriver, answers_of, batch, questions, rows_on_disk, write_rows
from support.programs import PATIENCE, scenes, start, without_times

from covist import tiny
from covist.cli import main


def kill_at(moments: Sequence[int], command: Sequence[object], out: Path, part_rows: int) -> None:
    """Run a command to its end; it is killed as soon as so many rows are on the disk, once for each moment."""
    for moment in sorted(moments):
        while not is_killed(moment, command, out, part_rows):
            shutil.rmtree(out)  # a busy machine let it end before it could be killed
    with start(*command) as process:
        _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complaint


def is_killed(moment: int, command: Sequence[object], out: Path, part_rows: int) -> bool:
    with start(*command) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and rows_on_disk(out, part_rows) < moment:
            assert time.monotonic() < deadline, "it never came so far"
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        _, complaint = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), complaint
    return process.returncode != 0


def test_a_driver_killed_at_five_random_moments_over_2000_rows(tmp_path):
    """Without a model, so that this can be run every time; the embedded one is asked in the long tests."""
    path = write_rows(tmp_path / "rows.jsonl", [*questions(2000), *questions(100)])
    moments = random.Random(17).sample(range(1, 1500), 5)
    kill_at(moments, ("support.batches", path, tmp_path / "killed", 32, 0.0005), tmp_path / "killed", 32)
    batch(path, tmp_path / "whole", FakeDriver(), part_rows=32)
    killed = answers_of(tmp_path / "killed")
    assert len({answer.id for answer in killed}) == len(killed) == 2000
    assert killed == answers_of(tmp_path / "whole")


def kill_the_command(folder: Path, count: int, kills: int, *options: object) -> None:
    path, part_rows = scenes(folder, count), max(8, count // 20)
    common = ("--part-rows", part_rows, "--max-new-tokens", 2, "--budget", 16, *options)

    def command(out: Path) -> tuple[object, ...]:
        return ("covist", "batch", path, "--out", out, *common)

    moments = random.Random(count).sample(range(1, count // 2), kills)
    kill_at(moments, command(folder / "killed"), folder / "killed", part_rows)
    with pytest.raises(SystemExit, match="^0$"):
        main([str(word) for word in command(folder / "whole")[1:]])
    killed = without_times(folder / "killed")
    assert len({answer.id for answer in killed}) == len(killed) == count
    assert sum(answer.error is not None for answer in killed) == 1
    assert killed == without_times(folder / "whole")
    manifests = [json.loads((folder / name / "_manifest.json").read_text()) for name in ("killed", "whole")]
    assert manifests[0] == manifests[1]


def test_the_command_killed_once(tmp_path):
    model, _, (clip, _) = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=2))
    tiny.save(model, clip, tmp_path / "model")
    kill_the_command(tmp_path, 48, 1, "--model", tmp_path / "model", "--concentration", 0.1)


@pytest.mark.slow
def test_the_embedded_model_killed_at_five_random_moments_over_2000_rows(tmp_path):
    kill_the_command(tmp_path, 2000, 5)
