"""Inputs that grow: a job goes on, says so, and what was answered stays where it was."""

from __future__ import annotations

import os
import random
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support.batches import FakeDriver, Stops, answers_of, batch, parts_of, questions, reply, write_rows

from covist import CovistError
from covist.batch.manifest import Extent


def touch(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def ask(folder, out, driver=None, **options):
    return batch(folder, out, driver or FakeDriver(), prompt="what ?", **options)


def ids(out) -> list[str]:
    return [answer.id for answer in answers_of(out)]


def test_images_that_come_later_are_answered_after_the_others_and_no_part_changes(tmp_path):
    folder, out = touch(tmp_path / "photos", "b.png", "d.png", "f.png", "g.png", "h.png"), tmp_path / "out"
    ask(folder, out)
    before = {path: path.read_bytes() for path in parts_of(out)}
    touch(folder, "a.png", "c.png", "z.png")
    again = FakeDriver()
    with pytest.warns(UserWarning, match="photos has grown: 3 rows more than the 5 of before"):
        finished = ask(folder, out, again)
    assert again.asked == ["a.png", "c.png", "z.png"]
    assert ids(out) == ["b.png", "d.png", "f.png", "g.png", "h.png", "a.png", "c.png", "z.png"]
    assert (finished.tally.rows, finished.tally.answered, finished.rows_now, finished.parts) == (8, 8, 3, 3)
    assert {path: path.read_bytes() for path in before} == before
    assert parquet.read_table(out)["row"].to_pylist() == list(range(1, 9))
    third = FakeDriver()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(folder, out, third)
    assert third.asked == []


def test_lines_that_are_appended_are_answered(tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", questions(5)), tmp_path / "out"
    path.write_text(path.read_text().rstrip("\n"))  # without the end of its last line
    batch(path, out, FakeDriver())
    with pytest.warns(UserWarning, match="has grown: 4 rows more than the 5 of before"):
        batch(write_rows(path, [*questions(8), questions(1)[0]]), out, FakeDriver())
    assert ids(out) == [f"row-{number}" for number in range(8)], "a repetition across the border is one still"


def test_a_file_that_is_added_after_the_last_one_adds_its_rows(tmp_path):
    files = [
        write_rows(tmp_path / f"{name}.jsonl", questions(9)[at : at + 3]) for at, name in ((0, "a"), (3, "b"), (6, "c"))
    ]
    out = tmp_path / "out"
    batch(files[:2], out, FakeDriver())
    with pytest.warns(UserWarning, match="3 rows more"):
        batch(files, out, FakeDriver())
    assert ids(out) == [f"row-{number}" for number in range(9)]
    with pytest.raises(CovistError, match="are not those of the job"):
        batch(files[::-1], out, FakeDriver())


def test_images_that_vanish_or_change_are_told_and_their_answers_stay(tmp_path):
    folder, out = touch(tmp_path / "photos", "a.png", "b.png", "c.png", "d.png"), tmp_path / "out"
    ask(folder, out)
    (folder / "a.png").unlink()
    (folder / "b.png").unlink()
    (folder / "c.png").write_bytes(b"other pixels")
    os.utime(folder / "d.png", ns=(1, 1))
    with pytest.warns(UserWarning) as told:
        ask(folder, out)
    words = " | ".join(str(one.message) for one in told)
    assert "2 images of the job no longer found" in words and "2 images written again since" in words
    assert ids(out) == ["a.png", "b.png", "c.png", "d.png"]


def test_an_image_that_vanishes_before_it_is_answered_costs_its_own_row(tmp_path):
    folder, out = touch(tmp_path / "photos", *(f"{number}.png" for number in range(6))), tmp_path / "out"

    class Deletes(FakeDriver):
        def inspect(self, spec):
            (folder / "3.png").unlink()
            return super().inspect(spec)

    assert ask(folder, out, Deletes()).tally.done == 6
    assert ids(out) == [f"{number}.png" for number in range(6)]


def test_another_folder_is_not_taken_for_one_that_has_grown(tmp_path):
    ask(touch(tmp_path / "photos", "a.png", "b.png"), tmp_path / "out")
    with pytest.raises(CovistError, match="none of the 2 images of the job is in .*others; choose another directory"):
        ask(touch(tmp_path / "others", "c.png"), tmp_path / "out")


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"label": "three"}, "label: integer then, text now"),
        ({"label": 1.5}, "label: integer then, number now"),
        ({"colour": "red"}, "colour: none then, text now"),
    ],
)
def test_new_rows_with_other_columns_are_refused_because_all_parts_have_the_same(tmp_path, new, said):
    rows = [{**row, "label": 3} for row in questions(3)]
    path, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out"
    batch(path, out, FakeDriver())
    with pytest.raises(CovistError, match="the new rows of .* have other fields") as refused:
        batch(write_rows(path, [*rows, {**questions(4)[3], **new}]), out, FakeDriver())
    assert said in str(refused.value)


@settings(max_examples=25)  # each writes and flushes dozens of files
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=5), st.integers(1, 5), st.booleans())
def test_grown_and_interrupted_anywhere_there_is_one_answer_for_each_row(tmp_path_factory, steps, part_rows, is_folder):
    folder = tmp_path_factory.mktemp("job")
    names, drawn = [], random.Random(0)
    for added, pieces in [(3, 1), *steps, (0, 999)]:
        names += [f"{drawn.random()}.png" for _ in range(added)]
        if is_folder:
            path = touch(folder / "photos", *names)
        else:
            path = write_rows(folder / "rows.jsonl", [{"id": name, "image": name} for name in names])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ask(path, folder / "out", Stops(pieces, piece=2), part_rows=part_rows)
            except KeyboardInterrupt:
                continue
    found = ids(folder / "out")
    assert sorted(found) == sorted(names) and (is_folder or found == names)
    table = parquet.read_table(folder / "out")
    assert table["image"].to_pylist() == found and table["row"].to_pylist() == list(range(1, len(names) + 1))


def test_a_job_that_was_killed_between_the_list_of_images_and_the_manifest_goes_on(tmp_path, monkeypatch):
    folder, out = touch(tmp_path / "photos", "b.png", "c.png"), tmp_path / "out"
    ask(folder, out)
    touch(folder, "a.png")

    def killed(self, manifest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.warns(UserWarning), pytest.raises(KeyboardInterrupt):
        patched.setattr("covist.batch.store.Store.write_manifest", killed)
        ask(folder, out)
    touch(folder, "0.png")
    with pytest.warns(UserWarning, match="2 rows more than the 2"):
        ask(folder, out)
    assert ids(out) == ["b.png", "c.png", "a.png", "0.png"]


def test_failed_rows_are_tried_again_after_the_input_has_grown(tmp_path):
    rows = [{"id": str(number), "image": "a.png", "prompt": "fail"} for number in range(5)]
    path, out = write_rows(tmp_path / "rows.jsonl", rows[:3]), tmp_path / "out"
    batch(path, out, FakeDriver(), part_rows=2)
    again = FakeDriver(answer=lambda row: reply(row) if row.id != "1" else reply(row).__class__("1", "MENDED"))
    with pytest.warns(UserWarning):
        finished = batch(write_rows(path, rows), out, again, part_rows=2, retry_errors=True)
    assert again.asked == ["0", "1", "2", "3", "4"] and finished.tally.errors == 4
    assert [answer.answer for answer in answers_of(out)] == [None, "MENDED", None, None, None]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 7))
def test_parts_hold_every_row_once_and_never_cross_the_end_of_an_earlier_input(steps, part_rows):
    ends = tuple(sum(steps[: place + 1]) for place in range(len(steps)))
    parts = Extent(ends, part_rows).parts()
    assert [row for part in parts for row in part] == list(range(ends[-1]))
    assert all(1 <= len(part) <= part_rows for part in parts)
    assert not [end for end in ends for part in parts if part.start < end < part.stop]
    for place in range(1, len(ends)):
        assert parts[: len(Extent(ends[:place], part_rows).parts())] == Extent(ends[:place], part_rows).parts()
