"""Inputs: JSON lines, Parquet and folders give rows in a fixed order, from any place on, without holding them all."""

import json
import os
from itertools import islice

import pyarrow
import pytest
from pyarrow import parquet
from support.batches import questions, write_rows

from covist import CovistError
from covist.batch.sources import ImageFolder, JsonLines, ParquetFile, open_source

ROWS = questions(10)


@pytest.fixture(params=["jsonl", "parquet", "folder"])
def source(request, tmp_path):
    if request.param == "jsonl":
        return open_source(write_rows(tmp_path / "rows.jsonl", ROWS))
    if request.param == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet", row_group_size=3)
        return open_source(tmp_path / "rows.parquet")
    for number in range(10):
        (tmp_path / f"{number}.png").touch()
    return open_source(tmp_path)


@pytest.mark.parametrize("start", [0, 1, 3, 7, 9, 10])
def test_reading_from_a_place_gives_the_same_rows_as_skipping_to_it(source, start):
    rows = list(source.rows(start))
    assert rows == list(islice(source.rows(), start, None))
    assert [row.number for row in rows] == list(range(start, source.survey().rows))


def test_every_kind_is_recognised_by_what_it_is_not_by_its_name(tmp_path):
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.jsonl")
    assert isinstance(open_source(tmp_path / "rows.jsonl"), ParquetFile)
    assert isinstance(open_source(write_rows(tmp_path / "rows.parquet", ROWS)), JsonLines)
    assert isinstance(open_source(tmp_path), ImageFolder)


def test_json_lines_and_parquet_give_the_same_rows(tmp_path):
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    lines, table = open_source(write_rows(tmp_path / "rows.jsonl", ROWS)), open_source(tmp_path / "rows.parquet")
    assert list(lines.rows()) == list(table.rows())


def test_blank_lines_and_a_byte_order_mark_are_ignored(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a"}\n\n  \n{"id": "b"}')
    assert [row.id for row in open_source(path).rows()] == ["a", "b"]
    assert open_source(path).survey().rows == 2


@pytest.mark.parametrize("line", [b"oops", b'{"id": ', b"\xff\xfe", b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b"}"])
def test_a_line_that_is_not_json_is_a_row_with_an_error(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": "a"}\n' + line + b"\n")
    good, bad = open_source(path).rows()
    assert good.error is None and "row 2 is not a JSON object" in bad.error and "\n" not in bad.error


def test_messages_in_parquet_may_be_json(tmp_path):
    messages = [{"role": "user", "content": "why ?"}]
    rows = [{"id": "a", "messages": json.dumps(messages)}, {"id": "b", "messages": "no json"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    whole, broken = open_source(tmp_path / "rows.parquet").rows()
    assert whole.content == {"messages": messages} and broken.content == {"messages": "no json"}


def test_a_folder_is_read_through_and_sorted(tmp_path):
    for name in ("b.png", "a.JPG", "notes.txt", "scan.pdf", ".hidden.png", "more/c.webp", "more/deep/a.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    rows = list(open_source(tmp_path).rows())
    assert [row.id for row in rows] == ["a.JPG", "b.png", "more/c.webp", "more/deep/a.png"]
    assert rows[2].content == {"image": "more/c.webp"}


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_links_to_folders_are_followed_but_never_in_a_circle(tmp_path):
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    (tmp_path / "photos" / "deep" / "a.png").touch()
    (tmp_path / "photos" / "deep" / "back").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos" / "deep")
    rows = open_source(tmp_path / "photos").rows()
    assert [row.id for row in rows] == ["again/a.png", "deep/a.png"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_pipe_is_refused_since_it_can_be_read_only_once(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(CovistError, match="a pipe can be read only once"):
        open_source(tmp_path / "rows.jsonl")


@pytest.mark.skipif(os.name != "posix", reason="names that are no text")
def test_a_file_name_that_is_not_text_gets_a_readable_id(tmp_path):
    with open(os.path.join(os.fsencode(tmp_path), b"\xff.png"), "wb"):
        pass
    (row,) = open_source(tmp_path).rows()
    row.id.encode()
    assert (tmp_path / row.content["image"]).exists()


def test_the_fingerprint_follows_the_content_not_the_place(source, tmp_path):
    before = source.survey().fingerprint
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    path = moved / source.path.relative_to(tmp_path)
    assert open_source(path).survey().fingerprint == before
    if path.is_dir():
        (path / "new.png").touch()
    elif isinstance(source, ParquetFile):
        parquet.write_table(pyarrow.Table.from_pylist(ROWS[:9]), path)
    else:
        path.write_bytes(path.read_bytes().replace(b"question 5", b"question 6"))
    assert open_source(path).survey().fingerprint != before


@pytest.mark.parametrize("name", ["nowhere.jsonl", "nowhere"])
def test_an_input_that_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(CovistError, match=f"cannot read .*{name}: no such file"):
        open_source(tmp_path / name)


def test_a_damaged_parquet_file_is_refused(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(CovistError, match="cannot read"):
        open_source(tmp_path / "rows.parquet").survey()


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(CovistError, match="cannot read .*: permission denied"):
        open_source(tmp_path).survey()
