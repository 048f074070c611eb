"""The directory: parts appear whole or not at all, whatever the disk or the process does."""

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest
from pyarrow import parquet
from support.batches import FakeDriver, answers_of, batch, questions, write_rows
from support.programs import PATIENCE

from covist import CovistError
from covist.batch.answers import COLUMNS, PartRow, RowAnswer
from covist.batch.store import Store

COLUMNS_GIVEN = {"image": "text", "label": "integer", "answer": "text"}
ANSWERS = [RowAnswer("a", "yes\n", "stop", 576, 63.5, 0.25), RowAnswer("ü", error="image a.png does not exist")]


@pytest.fixture(params=["parquet", "jsonl"])
def store(request, tmp_path):
    made = Store(tmp_path / "out", request.param)
    yield made
    made.close()


def write(store: Store, index: int, answers: list[RowAnswer]) -> None:
    store.write_part(index, [PartRow(answer, 3, {"label": 7}) for answer in answers], COLUMNS_GIVEN)


def test_a_part_is_read_as_it_was_written(store):
    write(store, 0, ANSWERS)
    write(store, 7, [])
    assert store.read_part(0) == ANSWERS and store.read_part(7) == []
    assert store.has_part(7) and not store.has_part(1)


def test_a_directory_of_parquet_parts_is_one_table(tmp_path):
    batch(write_rows(tmp_path / "rows.jsonl", questions(6)), tmp_path / "out", FakeDriver())
    table = parquet.read_table(tmp_path / "out")
    assert table.num_rows == 6 and table.column_names == [*COLUMNS, "row", "image", "prompt"]


def test_noted_answers_are_recovered_without_the_truncated_line(store):
    store.note(3, ANSWERS)
    journal = store.directory / "_work" / "part-000003.jsonl"
    whole = journal.read_bytes()
    for cut in (1, 20, len(whole.splitlines()[1])):
        journal.write_bytes(whole[:-cut])
        assert store.recover(3) == ANSWERS[:1]
        store.note(3, ANSWERS[1:])
        assert store.recover(3) == ANSWERS
    write(store, 3, ANSWERS)
    assert store.recover(3) == []


@pytest.mark.parametrize("damage", [b"\0" * 40, b"{", b"{}", b"null"])
def test_a_damaged_line_of_a_journal_costs_its_own_rows_only(store, damage):
    store.note(0, ANSWERS[:1])
    with (store.directory / "_work" / "part-000000.jsonl").open("ab") as file:
        file.write(damage + b"\n")
    store.note(0, ANSWERS[1:])
    assert store.recover(0) == ANSWERS


def test_damaged_ids_are_named_and_can_be_deleted(tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", questions(300)), tmp_path / "out"
    batch(path, out, FakeDriver(), part_rows=100)
    (out / "part-000002.parquet").unlink()
    ids = out / "_work" / "ids.sqlite"
    whole = ids.read_bytes()
    ids.write_bytes(whole[:4096] + b"\xff" * 4096 + whole[8192:])
    with pytest.raises(CovistError, match=r"malformed; delete .*ids.sqlite, then run the same command again"):
        batch(path, out, FakeDriver(), part_rows=100)
    ids.unlink()
    assert batch(path, out, FakeDriver(), part_rows=100).tally.answered == 300


@contextmanager
def largest_file(count: int):
    """Nothing above `count` bytes can be written, by anybody in this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_part_that_cannot_be_written_whole_leaves_the_old_one(store):
    write(store, 0, ANSWERS)
    many = [RowAnswer(f"row-{number}", os.urandom(20).hex()) for number in range(500)]
    with largest_file(4096):
        with pytest.raises(CovistError, match="cannot write to .*: file too large"):
            write(store, 0, many)
        with pytest.raises(CovistError, match="cannot write"):
            write(store, 1, many)
    assert store.read_part(0) == ANSWERS and not store.has_part(1)
    assert [path.name for path in (store.directory / "_work").iterdir()] == ["lock"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is always full")
def test_a_job_reports_a_full_disk_and_continues_once_there_is_room(tmp_path):
    """The second part is written onto a device that really is full."""
    path, out = write_rows(tmp_path / "rows.jsonl", questions(12)), tmp_path / "out"
    (out / "_work").mkdir(parents=True)
    (out / "_work" / "part-000001.parquet.tmp").symlink_to("/dev/full")
    with pytest.raises(CovistError, match="no space left on device; free some space, then run the same command again"):
        batch(path, out, FakeDriver())
    assert sorted(file.name for file in out.glob("part-*")) == ["part-000000.parquet"]
    again = FakeDriver()
    assert batch(path, out, again).tally.answered == 12
    assert again.asked == [f"row-{number}" for number in range(8, 12)], "the answers of the second part were kept"
    assert len(answers_of(out)) == 12


def test_a_full_disk_under_the_ids_is_one_line(tmp_path, monkeypatch):
    import sqlite3

    def full(self, rows):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("covist.batch.ids.Ids.own", full)
    with pytest.raises(CovistError, match="database or disk is full; free some"):
        batch(write_rows(tmp_path / "rows.jsonl", questions(2)), tmp_path / "out", FakeDriver())


def test_two_jobs_cannot_share_a_directory(store):
    with pytest.raises(CovistError, match="another covist batch is running in"):
        Store(store.directory)


def test_a_directory_is_free_again_once_its_job_is_closed(store):
    directory = store.directory
    store.close()
    Store(directory).close()


def test_two_jobs_cannot_share_a_directory_where_the_system_has_no_fcntl(store):
    """As on Windows."""
    open_twice = "import sys; sys.modules['fcntl'] = None; from covist.batch.store import Store; "
    open_twice += f"first = Store({str(store.directory / 'other')!r}); Store(first.directory)"
    process = subprocess.run([sys.executable, "-c", open_twice], capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 1
    assert "CovistError: another covist batch is running in" in process.stderr


def test_a_damaged_part_is_named(tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", questions(6)), tmp_path / "out"
    batch(path, out, FakeDriver())
    (out / "part-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(CovistError, match=r"part-000001.parquet is damaged .*; delete it"):
        batch(path, out, FakeDriver())
    (out / "part-000001.parquet").unlink()
    assert batch(path, out, FakeDriver()).tally.answered == 6


def test_a_damaged_manifest_and_parts_without_one_are_refused(tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", questions(6)), tmp_path / "out"
    batch(path, out, FakeDriver())
    manifest = out / "_manifest.json"
    whole = manifest.read_text()
    for text, complaint in (("{", "damaged"), ("[]", "damaged"), (json.dumps({"layout": 0}), "another version")):
        manifest.write_text(text)
        with pytest.raises(CovistError, match=complaint):
            batch(path, out, FakeDriver())
    manifest.unlink()
    with pytest.raises(CovistError, match="holds parts without a manifest"):
        batch(path, out, FakeDriver())
    manifest.write_text(whole)
    assert batch(path, out, FakeDriver()).tally.answered == 6


def test_an_error_of_the_disk_keeps_its_name(store):
    with pytest.raises(CovistError, match="input/output error"), store.writing():
        raise OSError(errno.EIO, "Input/output error")
