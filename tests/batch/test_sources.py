"""Inputs: tables and folders give rows in a fixed order, from any place on; anything else is refused."""

import csv
import io
import json
import os
import sys
from itertools import islice

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from support.batches import questions, write_rows

from covist import CovistError
from covist.batch.folders import Images
from covist.batch.sources import open_source, opened
from covist.batch.tables import CsvTable, JsonLines, JsonList, ParquetFile

ROWS = questions(10)


def write_csv(path, rows, **options):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path, rows):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    return path


def write_list(path, rows):
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return path


def write_folder(path, rows):
    for number in range(len(rows)):
        (path.parent / f"{number}.png").touch()
    return path.parent


WRITERS = {
    "rows.jsonl": write_rows,
    "rows.json": write_list,
    "rows.csv": write_csv,
    "rows.parquet": write_parquet,
    "folder": write_folder,
}


@pytest.fixture(params=[*WRITERS, "several"])
def source(request, tmp_path):
    if request.param != "several":
        return open_source(WRITERS[request.param](tmp_path / request.param, ROWS))
    pieces = (ROWS[:4], ROWS[4:5], ROWS[5:])
    return open_source(
        [write(tmp_path / name, rows) for (name, write), rows in zip(WRITERS.items(), pieces, strict=False)]
    )


@pytest.mark.parametrize("start", [0, 1, 3, 7, 9, 10])
def test_reading_from_a_place_gives_the_same_rows_as_skipping_to_it(source, start):
    rows = list(source.rows(start))
    assert rows == list(islice(source.rows(), start, None))
    assert [row.number for row in rows] == list(range(start, source.survey().rows))


def test_every_kind_is_recognised_by_what_it_is_not_by_its_name(tmp_path):
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.jsonl")
    assert isinstance(open_source(tmp_path / "rows.jsonl"), ParquetFile)
    assert isinstance(open_source(write_rows(tmp_path / "rows.parquet", ROWS)), JsonLines)
    assert isinstance(open_source(tmp_path), Images)
    assert isinstance(open_source(write_csv(tmp_path / "rows.png", ROWS)), CsvTable)
    assert isinstance(open_source(write_list(tmp_path / "rows.txt", ROWS)), JsonList)


@pytest.mark.parametrize("name", ["rows.json", "rows.csv", "rows.parquet"])
def test_every_kind_of_table_gives_the_same_rows(tmp_path, name):
    lines = open_source(write_rows(tmp_path / "rows.jsonl", ROWS))
    table = open_source(WRITERS[name](tmp_path / name, ROWS))
    assert list(lines.rows()) == list(table.rows())
    assert lines.look() == table.look()


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
    with pytest.raises(CovistError, match="is a pipe, which can be read only once; give - and pipe the rows in"):
        open_source(tmp_path / "rows.jsonl")


@pytest.mark.skipif(os.name != "posix", reason="names that are no text")
def test_a_file_name_that_is_not_text_gets_a_readable_id(tmp_path):
    with open(os.path.join(os.fsencode(tmp_path), b"\xff.png"), "wb"):
        pass
    (row,) = open_source(tmp_path).rows()
    row.id.encode()
    assert (tmp_path / row.content["image"]).exists()


@pytest.mark.parametrize("name", WRITERS)
def test_the_fingerprint_follows_the_content_not_the_place(tmp_path, name):
    def survey(folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        return open_source(WRITERS[name](tmp_path / folder / name, changed)).survey()

    changed = ROWS
    before = survey("one")
    assert survey("two") == before
    changed = [*ROWS[:5], {**ROWS[5], "prompt": "question 6"}, *ROWS[6:], *([{"id": "11"}] if name == "folder" else [])]
    assert survey("two").fingerprint != before.fingerprint


@pytest.mark.parametrize("name", ["nowhere.jsonl", "nowhere"])
def test_an_input_that_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(CovistError, match=f"input .*{name} does not exist"):
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


def test_a_photograph_is_a_row_of_its_own_and_no_file_of_rows(tmp_path, monkeypatch):
    """Read as JSON lines, it was dozens of rows with errors."""
    monkeypatch.chdir(tmp_path)
    noise = Image.effect_noise((320, 240), 90).convert("RGB")
    noise.save("photo.jpg", quality=95)
    noise.save("unnamed", "PNG")
    for name in ("photo.jpg", "unnamed"):
        (row,) = open_source(name).rows()
        assert (row.id, row.content, row.given) == (name, {"image": name}, {"image": name})


UNKNOWN = {
    "empty.zip": b"PK\x03\x04" + bytes(60),
    "notes.txt": b"what is this?\nI do not know\n",
    "numbers.csv": b"a,b\n1,2\n",
    "film.mp4": b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 300,
    "{.bin": bytes(range(256)) * 300 + b"\n{\n{",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_neither_rows_nor_an_image_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(UNKNOWN[name])
    with pytest.raises(CovistError, match="is nothing that covist batch reads: JSON lines, a JSON list, CSV"):
        open_source(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "start"), [("photo.eps", b"%!PS-Adobe"), ("photo.svg", b"<svg>{\n{"), ("x.jpg", b"?")]
)
def test_an_image_that_cannot_be_read_is_refused_in_the_words_of_the_decoder(tmp_path, name, start):
    (tmp_path / name).write_bytes(start)
    with pytest.raises(CovistError, match=f"image .*{name} is not an image that covist can read"):
        open_source(tmp_path / name)


def test_a_list_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "rows.json").write_text('[{"id": "a"},')
    with pytest.raises(CovistError, match="cannot read .*rows.json: .* at character"):
        open_source(tmp_path / "rows.json").survey()


def test_one_object_over_several_lines_is_one_row(tmp_path):
    (tmp_path / "row.json").write_text(json.dumps({"id": "a", "image": "a.png"}, indent=2))
    (row,) = open_source(tmp_path / "row.json").rows()
    assert row.id == "a" and row.error is None


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables_of_spreadsheets_are_read(tmp_path, delimiter):
    path = tmp_path / "rows.csv"
    heading, long = ["Image", " Question ", "label", "images"], f"one{delimiter}\ntwo"
    lines = [heading, ["a.png", long, "", ""], ["", "x", "y", '["b.png"]']]
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows(lines)
    path.write_bytes(b"\xef\xbb\xbf" + file.getvalue().encode() + b"\r\n")
    first, second = open_source(path).rows()
    assert first.content == {"image": "a.png", "prompt": long} and "label" not in first.given
    assert second.content == {"images": ["b.png"], "prompt": "x"} and second.given["label"] == "y"


def test_a_line_of_a_table_with_too_many_cells_is_an_error_of_its_own(tmp_path):
    (tmp_path / "rows.csv").write_text("image,prompt\na.png,one, two\nb.png,three\n")
    bad, good = open_source(tmp_path / "rows.csv").rows()
    assert bad.error == "row 1 has 3 cells, more than the first line names" and good.error is None


@pytest.mark.parametrize("rest", [b"caf\xe9,x\n", b'"' + b"9" * 200_000 + b'",x\n'])
def test_a_table_that_is_not_text_or_holds_whole_images_is_refused_in_one_line(tmp_path, rest):
    (tmp_path / "rows.csv").write_bytes(b"image,prompt\n" + b"a.png,x\n" * 9000 + rest)
    with pytest.raises(CovistError, match="cannot read .*rows.csv: (it is not text in UTF-8|field larger than)"):
        open_source(tmp_path / "rows.csv").survey()


def test_patterns_stand_for_the_files_that_they_match(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos/b.jpg", "photos/a.png", "more/a.png", "[1].png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [row.id for row in open_source("*/*.[jp]*g").rows()] == ["more/a.png", "photos/a.png", "photos/b.jpg"]
    assert [row.id for row in open_source(["photos", "more/a.png", "photos"]).rows()] == [
        "photos/a.png", "photos/b.jpg", "more/a.png",
    ]  # fmt: skip
    assert [row.id for row in open_source(["[1].png", "photos"]).rows()][0] == "[1].png", "a file of this name"
    with pytest.raises(CovistError, match=r"no file matches \*\.gif"):
        open_source("*.gif")


def test_images_of_one_name_in_two_folders_are_two_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").touch()
    rows = list(open_source(["one", "two"]).rows())
    assert [row.id for row in rows] == ["one/a.png", "two/a.png"]
    assert all((row.folder / row.content["image"]).exists() for row in rows)


def test_rows_of_several_files_are_relative_to_their_own_file(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_rows(tmp_path / folder / "rows.jsonl", [{"id": folder, "image": "a.png"}])
    rows = list(open_source(str(tmp_path / "*" / "rows.jsonl")).rows())
    assert [(row.number, row.id, row.folder.name) for row in rows] == [(0, "one", "one"), (1, "two", "two")]


def test_images_and_files_of_rows_are_not_mixed(tmp_path):
    (tmp_path / "a.png").touch()
    with pytest.raises(CovistError, match=r"a.png is an image or a folder, .*rows.jsonl is not: give one kind"):
        open_source([tmp_path / "a.png", write_rows(tmp_path / "rows.jsonl", ROWS)])


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_standard_input_holds_rows_relative_to_this_folder(tmp_path, monkeypatch, name):
    (tmp_path / "elsewhere").mkdir()
    given = WRITERS[name](tmp_path / "elsewhere" / name, ROWS)
    monkeypatch.chdir(tmp_path)
    with given.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        with opened(["-"]) as source:
            rows = list(source.rows())
            kept = source.path
    assert [row.id for row in rows] == [row["id"] for row in ROWS] and {row.folder for row in rows} == {tmp_path}
    assert source.name == "standard input" and not kept.exists()


def test_standard_input_that_holds_no_rows_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x89PNG\r\n")))
    with pytest.raises(CovistError, match="standard input holds no rows"), opened("-"):
        pass
    with (
        pytest.raises(CovistError, match="- is standard input, and cannot be read together"),
        opened(["-", "a"]),
    ):
        pass


def test_files_that_a_folder_leaves_out_are_counted_by_their_endings(tmp_path):
    for name in ("a.png", "b.SVG", "c.svg", "notes", "more/d.mov", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert open_source(tmp_path).survey().left_out == {".svg": 2, "without an ending": 1, ".mov": 1}


def test_kinds_of_columns_follow_their_values(tmp_path):
    rows = [
        {"image": "a.png", "n": 1, "x": 1, "b": True, "s": "a", "mixed": 1, "l": [1], "big": 2**70, "null": None},
        {"image": "b.png", "n": 2, "x": 1.5, "b": False, "s": "b", "mixed": "one", "l": {}, "id": 7, "messages": []},
    ]
    found = open_source(write_rows(tmp_path / "rows.jsonl", rows)).look()
    assert found.columns == {
        "image": "text", "n": "integer", "x": "number", "b": "boolean", "s": "text", "mixed": "text", "l": "text",
        "big": "text",
    }  # fmt: skip
    assert "messages" in found.fields


def test_columns_of_parquet_that_hold_bytes_are_not_repeated(tmp_path):
    rows = [{"image": {"bytes": b"x", "path": "a.png"}, "depth": {"bytes": b"x"}, "raw": b"x", "n": 1, "tags": ["a"]}]
    source = open_source(write_parquet(tmp_path / "rows.parquet", rows))
    assert source.look().columns == {"image": "text", "n": "integer", "tags": "text"}
    assert next(source.rows()).given == {"image": "a.png", "n": 1, "tags": ["a"]}
