"""Results on a disk that is full: nothing half-written stays, what was there stays, and one line says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from covist.api.setup import Setup
from covist.errors import CovistError
from covist.outputs import replace_file, writable_directory, writable_file
from covist.viz import save_figure, save_page

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is always full")
SAVERS = {
    "kept.png": lambda path: save_figure(Figure(), path),
    "kept.svg": lambda path: save_figure(Figure(), path),
    "kept.pdf": lambda path: save_figure(Figure(), path),
    "kept.html": lambda path: save_page("<p>kept</p>", path),
    "covist.json": lambda path: Setup("random", 64).save(path),
}


@pytest.fixture(params=SAVERS)
def saver(request, tmp_path):
    return SAVERS[request.param], tmp_path / request.param


@needs_full
@pytest.mark.parametrize("before", [None, b"the earlier one"])
def test_a_full_disk_leaves_what_was_there(saver, before):
    save, path = saver
    if before is not None:
        path.write_bytes(before)
    (path.parent / f".{path.name}.tmp").symlink_to("/dev/full")
    with pytest.raises(CovistError, match="no space left on device; free some space"):
        save(path)
    assert [file.name for file in path.parent.iterdir()] == ([path.name] if before else [])
    assert before is None or path.read_bytes() == before


def test_a_link_stays_a_link_and_its_file_is_replaced(saver):
    save, path = saver
    kept = path.parent / "elsewhere"
    kept.mkdir()
    path.symlink_to(kept / "real")
    save(path)
    assert path.is_symlink() and (kept / "real").stat().st_size > 0


@needs_full
def test_a_device_is_written_to_and_never_replaced(tmp_path):
    (tmp_path / "kept.html").symlink_to("/dev/full")
    with pytest.raises(CovistError, match="cannot write to /dev/full: no space left"):
        save_page("<p>kept</p>", tmp_path / "kept.html")
    assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(os.name != "posix", reason="names of other systems")
def test_a_name_that_is_too_long_is_refused_and_the_longest_is_not(tmp_path):
    for check in (writable_file, writable_directory):
        with pytest.raises(CovistError, match="cannot write to .*: file name too long"):
            check(tmp_path / ("n" * 300))
    replace_file(tmp_path / ("n" * 255), lambda file: file.write(b"kept"))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"kept"]


@needs_full
@pytest.mark.parametrize("command", ["methods", "methods --json", "--help"])
def test_printing_to_a_full_disk_ends_with_one_line(command):
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "covist", *command.split()], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (ran.returncode, ran.stderr) == (2, "covist: cannot write the output: no space left on device\n")
