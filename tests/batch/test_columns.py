"""Answers repeat the columns of the input, under names and with types that readers can rely on."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas
import pyarrow
import pytest
from pyarrow import parquet
from support.batches import FakeDriver, questions, write_rows

from covist import CovistError
from covist.batch.answers import COLUMNS
from covist.batch.job import run
from covist.batch.manifest import Order
from covist.batch.spec import WorkerSpec
from covist.batch.tally import reason

ROWS = [
    {"image": "a.png", "question": "one", "question_id": 31, "answer": "yes", "row": "x", "score": 1, "tags": ["t"]},
    {"image": "b.png", "question": "two", "question_id": 7, "answer": "no", "score": 0.5, "ok": True},
    {"image": "b.png", "question": "two", "question_id": 8, "answer": "no"},
]


def answered(tmp_path, rows, format="parquet", part_rows=2):
    path = write_rows(tmp_path / "rows.jsonl", rows)
    return run(Order(path, WorkerSpec(), format, part_rows), tmp_path / "out", FakeDriver())


def test_parquet_has_the_columns_of_the_input_with_their_types(tmp_path):
    answered(tmp_path, ROWS)
    table = parquet.read_table(tmp_path / "out")
    own = ["row", "image", "question", "question_id", "input_answer", "input_row", "score", "tags", "ok"]
    assert table.column_names == [*COLUMNS, *own]
    assert table.select(own).to_pylist() == [
        {"row": 1, "image": "a.png", "question": "one", "question_id": 31, "input_answer": "yes", "input_row": "x",
         "score": 1.0, "tags": '["t"]', "ok": None},
        {"row": 2, "image": "b.png", "question": "two", "question_id": 7, "input_answer": "no", "input_row": None,
         "score": 0.5, "tags": None, "ok": True},
        {"row": 3, "image": "b.png", "question": "two", "question_id": 8, "input_answer": "no", "input_row": None,
         "score": None, "tags": None, "ok": None},
    ]  # fmt: skip
    assert table["answer"].to_pylist() == ["ONE", "TWO", "TWO"]
    assert {parquet.read_schema(part) for part in (tmp_path / "out").glob("part-*")} == {table.schema.remove_metadata()}


def test_json_lines_have_them_as_they_were(tmp_path):
    answered(tmp_path, ROWS, "jsonl", 9)
    lines = [json.loads(line) for line in (tmp_path / "out" / "part-000000.jsonl").read_text().splitlines()]
    assert lines[0]["tags"] == ["t"] and lines[0]["input_answer"] == "yes" and lines[2]["tags"] is None
    assert all(list(line) == list(lines[0]) for line in lines)


def test_answers_can_be_joined_with_the_input_on_its_own_column_or_on_the_row(tmp_path):
    answered(tmp_path, ROWS)
    given, found = pandas.DataFrame(ROWS), pandas.read_parquet(tmp_path / "out")
    joined = given.merge(found[["question_id", "answer"]], on="question_id", suffixes=("_right", ""))
    assert joined["answer"].tolist() == ["ONE", "TWO", "TWO"]
    by_row = given.assign(number=range(1, 4)).merge(found[["row", "answer"]], left_on="number", right_on="row")
    assert len(by_row) == 3


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_rows_that_cannot_be_read_and_odd_values_are_no_obstacle(tmp_path, format):
    path = tmp_path / "rows.jsonl"
    odd = {"image": "a.png", "prompt": "x", "n": 2**80, "s": "\ud800", "": "nameless", "nested": {"a": [None]}}
    path.write_text(f"oops\n{json.dumps(odd)}\n[1]\n")
    finished = run(Order(path, WorkerSpec(), format), tmp_path / "out", FakeDriver())
    assert (finished.tally.answered, finished.tally.errors) == (1, 2)
    again = run(Order(path, WorkerSpec(), format), tmp_path / "out", FakeDriver())
    assert again.tally == finished.tally


def test_dates_and_numbers_of_parquet_are_repeated(tmp_path):
    import datetime
    import decimal

    row = {"image": "a.png", "prompt": "x", "day": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.50"), "n": 3}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    run(Order(tmp_path / "rows.parquet", WorkerSpec()), tmp_path / "out", FakeDriver())
    (found,) = parquet.read_table(tmp_path / "out").select(["day", "price", "n"]).to_pylist()
    assert found == {"day": "2026-01-02", "price": "1.50", "n": 3}


def test_workers_are_not_given_what_only_answers_repeat(tmp_path):
    seen = []

    class Watches(FakeDriver):
        def run(self, spec, blocks):
            for block in blocks:
                seen.extend(block.rows)
                yield from super().run(spec, [block])

    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    run(Order(path, WorkerSpec()), tmp_path / "out", Watches())
    assert [row.given for row in seen] == [{}, {}, {}] and seen[0].content["prompt"] == "one"


@pytest.mark.parametrize(
    ("rows", "prompt", "said"),
    [
        ([{"picture": "a.png", "prompt": "x"}], None, "no row has image, images or messages; its fields are picture"),
        ([{"image": "a.png", "text": "x"}], None, "no row has a prompt or a question; --prompt gives one to all"),
        ([[1], [2]], None, "rows.jsonl: (no row is an object|extra data)"),
        ([{f"f{number}": 1 for number in range(1001)} | {"image": "a.png", "prompt": "x"}], None, "1,003 different"),
        ([{"picture": "a.png"}], "what ?", "no row has image"),
    ],
    ids=["no image", "no prompt", "no objects", "too many fields", "no image, but a prompt"],
)
def test_an_input_that_can_have_no_answer_is_refused_before_a_model_is_loaded(tmp_path, rows, prompt, said):
    class Unused(FakeDriver):
        def inspect(self, spec):
            pytest.fail("a model was loaded")

    path = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(CovistError, match=said):
        run(Order(path, WorkerSpec(prompt=prompt)), tmp_path / "out", Unused())


def test_reasons_of_failures_are_counted_over_all_runs(tmp_path):
    rows = [{**row, "prompt": "fail"} for row in questions(3)] + questions(6)[3:]
    assert answered(tmp_path, rows).tally.reasons == {"it failed": 3}
    assert answered(tmp_path, rows).tally.to_dict()["reasons"] == {"it failed": 3}, "read from parts"
    path = tmp_path / "rows.jsonl"
    mended = FakeDriver(answer=lambda row: replace(FakeDriver()._answer(row), answer="MENDED", error=None))
    finished = run(Order(path, WorkerSpec(), part_rows=2), tmp_path / "out", mended, retry_errors=True)
    assert finished.tally.to_dict()["reasons"] == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("image /data/my photo is 3.png does not exist", "image … does not exist"),
        ("image a.png is damaged or truncated (broken (3 bytes left))", "image … is damaged or truncated"),
        ("image a.png cannot be read: permission denied", "image … cannot be read: permission denied"),
        ("image 2 is not valid base64", "image … is not valid base64"),
        ("image https://x.org/a.png: URLs are not read; download it", "image …: URLs are not read; download it"),
        ("id 'row-2' belongs to row 3, which differs", "id … belongs to row …, which differs"),
        ("it needs more than the 4,096 positions", "it needs more than the … positions"),
        ("both messages and image: give one of them", "both messages and image: give one of them"),
    ],
)  # fmt: skip
def test_a_reason_is_the_error_without_what_differs_from_row_to_row(error, words):
    assert reason(error) == words
