"""Jobs: each id has one row, whatever order and pieces answers come in and wherever the job was interrupted."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import FakeDriver, Stops, answers_of, batch, parts_of, questions, reply, write_rows

from covist import CovistError
from covist.api.setup import Setup
from covist.batch.answers import RowAnswer
from covist.batch.drivers import Result
from covist.batch.job import run
from covist.batch.manifest import Order
from covist.batch.spec import WorkerSpec
from covist.loading import Loading


class Untidy(FakeDriver):
    """Takes several blocks at once, in another thread, and answers in any order, some rows twice."""

    def run(self, spec, blocks):
        taken = []
        thread = threading.Thread(target=lambda: taken.extend(blocks))
        thread.start()
        thread.join()
        pairs = [(block.index, row) for block in taken for row in block.rows]
        drawn = random.Random(0)
        pairs += drawn.sample(pairs, len(pairs) // 3)
        drawn.shuffle(pairs)
        for index, row in pairs:
            yield Result(index, [reply(row)])


def expected(count: int) -> list[RowAnswer]:
    return [RowAnswer(f"row-{number}", f"QUESTION {number}", "stop", 10, 4.0, 0.25) for number in range(count)]


def test_answers_stand_in_the_order_of_the_input_one_part_for_each_block(tmp_path):
    finished = batch(write_rows(tmp_path / "rows.jsonl", questions(10)), tmp_path / "out", FakeDriver())
    assert answers_of(tmp_path / "out") == expected(10)
    assert [path.name for path in parts_of(tmp_path / "out")] == [f"part-00000{index}.parquet" for index in range(3)]
    assert finished.tally.to_dict() == {
        "rows": 10, "answered": 10, "errors": 0, "repeated": 0, "whole": 0, "capped": 0,
        "tokens_before": 100, "tokens_after": 40.0, "seconds": 2.5, "reasons": {}, "tokens_saved": 60.0,
    }  # fmt: skip


def test_a_driver_may_answer_in_any_order_and_twice(tmp_path):
    finished = batch(write_rows(tmp_path / "rows.jsonl", questions(23)), tmp_path / "out", Untidy())
    assert answers_of(tmp_path / "out") == expected(23)
    assert finished.tally.answered == 23


@settings(max_examples=25)  # each writes and flushes a dozen files
@given(st.lists(st.integers(0, 7), max_size=4), st.integers(1, 6), st.integers(1, 5))
def test_interrupted_anywhere_a_job_ends_as_if_it_had_not_been(tmp_path_factory, stops, part_rows, piece):
    folder = tmp_path_factory.mktemp("job")
    path, asked = write_rows(folder / "rows.jsonl", questions(13)), []
    for pieces in [*stops, 99]:
        driver = Stops(pieces, piece=piece)
        try:
            batch(path, folder / "out", driver, part_rows=part_rows)
        except KeyboardInterrupt:
            asked += driver.asked[: pieces * piece]
        else:
            asked += driver.asked
    assert answers_of(folder / "out") == expected(13)
    assert {f"row-{number}" for number in range(13)} == set(asked)


def test_answers_that_were_kept_are_not_asked_for_again(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", questions(10))
    with pytest.raises(KeyboardInterrupt):
        batch(path, tmp_path / "out", Stops(3, piece=2))
    again = FakeDriver()
    finished = batch(path, tmp_path / "out", again)
    assert again.asked == ["row-6", "row-7", "row-8", "row-9"]
    assert finished.rows_now == 4 and finished.tally.answered == 10, "what parts and journals hold is not of now"
    third = FakeDriver()
    batch(path, tmp_path / "out", third)
    assert third.asked == third.specs == [], "nothing is left, no worker begins"


def test_lost_ids_are_found_again(tmp_path):
    rows = [*questions(6), *questions(2)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(KeyboardInterrupt):
        batch(path, tmp_path / "out", Stops(2, piece=3))
    (tmp_path / "out" / "_work" / "ids.sqlite").unlink()
    assert batch(path, tmp_path / "out", FakeDriver()).tally.repeated == 2
    assert answers_of(tmp_path / "out") == expected(6)


def test_repeated_rows_are_counted_and_contradictions_are_errors(tmp_path):
    rows = [*questions(5), questions(2)[1], {"id": "row-2", "prompt": "something else"}, *questions(5)]
    finished = batch(write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out", FakeDriver())
    assert (finished.tally.answered, finished.tally.repeated, finished.tally.errors) == (5, 6, 1)
    answers = answers_of(tmp_path / "out")
    assert [answer.id for answer in answers] == ["row-0", "row-1", "row-2", "row-3", "row-4", "row-2#7"]
    assert "belongs to row 3" in answers[-1].error


def test_rows_that_cannot_be_read_become_errors_without_a_worker(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('oops\n{"id": "a", "image": "a.png", "prompt": "yes"}\n')
    driver = FakeDriver()
    finished = batch(path, tmp_path / "out", driver)
    assert driver.asked == ["a"] and finished.tally.errors == 1


def test_only_failed_rows_are_tried_again_and_take_their_places(tmp_path):
    rows = [{"id": str(number), "image": "a.png", "prompt": "fail" if number % 3 == 0 else "go"} for number in range(9)]
    path, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out"
    assert batch(path, out, FakeDriver()).tally.errors == 3
    untouched = FakeDriver()
    batch(path, out, untouched)
    assert untouched.asked == []
    mended = FakeDriver(answer=lambda row: RowAnswer(row.id, "MENDED", "stop", 10, 4.0, 0.25))
    finished = batch(path, out, mended, retry_errors=True)
    assert mended.asked == ["0", "3", "6"]
    assert finished.rows_now == 3
    assert [answer.answer for answer in answers_of(out)] == ["MENDED", "GO", "GO"] * 3
    assert (finished.tally.answered, finished.tally.errors, finished.tally.tokens_before) == (9, 0, 90)


def test_an_interrupted_retry_loses_nothing_and_what_failed_again_is_tried_again(tmp_path):
    rows = [{"id": str(number), "image": "a.png", "prompt": "fail"} for number in range(6)]
    path, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out"
    batch(path, out, FakeDriver())

    def mend(row):
        return RowAnswer(row.id, "MENDED") if row.id in "13" else reply(row)

    with pytest.raises(KeyboardInterrupt):
        batch(path, out, Stops(1, answer=mend, piece=2), retry_errors=True)
    assert all(answer.error for answer in answers_of(out)), "no part was touched"
    again = FakeDriver(answer=mend)
    batch(path, out, again, retry_errors=True)
    assert again.asked == ["0", "2", "3", "4", "5"]
    assert [answer.answer for answer in answers_of(out)] == [None, "MENDED", None, "MENDED", None, None]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"setup": Setup(budget=32)}, "budget: 64 then, 32 now"),
        ({"setup": Setup("divprune")}, "method: covist-fixed then, divprune now"),
        ({"max_new_tokens": 2}, "max-new-tokens: 64 then, 2 now"),
        ({"prompt": "what ?"}, "prompt: None then, what ? now"),
        ({"setup": Setup(concentration=0.2)}, "concentration: measured then, 0.2 now"),
        ({"model": "tiny-next"}, "model: tiny then, tiny-next now"),
        ({"part_rows": 5}, "part-rows: 4 then, 5 now"),
    ],
)
def test_other_settings_in_the_same_directory_are_refused_by_name(tmp_path, changed, said):
    path = write_rows(tmp_path / "rows.jsonl", questions(3))
    batch(path, tmp_path / "out", FakeDriver())
    with pytest.raises(CovistError, match="was made with other settings") as refused:
        batch(path, tmp_path / "out", FakeDriver(), **changed)
    assert said in str(refused.value)


def test_batch_size_device_and_input_path_may_change_between_runs(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", questions(9))
    with pytest.raises(KeyboardInterrupt):
        batch(path, tmp_path / "out", Stops(1))
    moved = path.rename(tmp_path / "moved.jsonl")
    assert batch(moved, tmp_path / "out", FakeDriver(), batch_size=7, loading=Loading(device="cpu")).tally.answered == 9


def test_another_input_in_the_same_directory_is_refused(tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", questions(3)), tmp_path / "out"
    batch(path, out, FakeDriver())
    with pytest.raises(CovistError, match=r"the first 3 rows of .*rows.jsonl are not those of the job"):
        batch(write_rows(path, questions(4)[::-1]), out, FakeDriver())
    with pytest.raises(CovistError, match=r"rows.jsonl has fewer rows than when the job began \(3 then, 2 now\)"):
        batch(write_rows(path, questions(2)), out, FakeDriver())


class Changes(FakeDriver):
    """Somebody writes into the input as soon as the first answers are there."""

    def __init__(self, path, text):
        super().__init__()
        self._path, self._text = path, text

    def run(self, spec, blocks):
        for result in super().run(spec, blocks):
            self._path.write_text(self._text)
            yield result


def test_rows_that_are_added_while_a_job_runs_do_not_belong_to_it(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", questions(6))
    longer = write_rows(tmp_path / "longer.jsonl", questions(9)).read_text()
    finished = batch(path, tmp_path / "out", Changes(path, longer))
    assert answers_of(tmp_path / "out") == expected(6) and finished.tally.done == 6


def test_rows_that_disappear_while_a_job_runs_end_it(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", questions(6))

    class Deletes(FakeDriver):
        def inspect(self, spec):
            write_rows(path, questions(5))
            return super().inspect(spec)

    with pytest.raises(CovistError, match="changed while it was read"):
        batch(path, tmp_path / "out", Deletes())


def test_a_directory_that_was_emptied_by_hand_begins_anew(tmp_path):
    """`rm DIR/*` leaves `_work`, whose answers are those of other settings and other rows."""
    path, out = write_rows(tmp_path / "rows.jsonl", questions(3)), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        batch(path, out, Stops(1, piece=2))
    (out / "_manifest.json").unlink()
    asked = [{**row, "prompt": "another question"} for row in questions(3)[::-1]]
    finished = batch(write_rows(path, asked), out, FakeDriver())
    assert (finished.rows_now, finished.tally.answered) == (3, 3)
    assert {answer.answer for answer in answers_of(out)} == {"ANOTHER QUESTION"}


def test_every_worker_gets_the_reference_and_the_identity_that_the_job_began_with(tmp_path):
    path, driver = write_rows(tmp_path / "rows.jsonl", questions(9)), Stops(1)
    with pytest.raises(KeyboardInterrupt):
        batch(path, tmp_path / "out", driver)
    driver.inspect = lambda spec: pytest.fail("the manifest knows it")
    driver._pieces = 99
    batch(path, tmp_path / "out", driver)
    assert {(spec.setup.concentration, spec.identity["model"]) for spec in driver.specs} == {(0.1, "fake")}


def test_a_folder_of_images_is_a_job_with_the_paths_as_ids(tmp_path):
    for name in ("b.png", "a.png"):
        (tmp_path / name).touch()
    run(Order(tmp_path, WorkerSpec(prompt="what ?")), tmp_path / "out", FakeDriver())
    assert [answer.id for answer in answers_of(tmp_path / "out")] == ["a.png", "b.png"]


def test_an_empty_input_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CovistError, match="contains no rows"):
        batch(write_rows(tmp_path / "rows.jsonl", []), tmp_path / "out", FakeDriver())
    assert not (tmp_path / "out").exists()
    (tmp_path / "images").mkdir()
    with pytest.raises(CovistError, match="contains no images"):
        batch(tmp_path / "images", tmp_path / "out", FakeDriver())


def test_progress_counts_every_row_once(tmp_path):
    seen = []
    path = write_rows(tmp_path / "rows.jsonl", [*questions(5), *questions(5)])
    run(
        Order(path, WorkerSpec(), part_rows=4),
        tmp_path / "out",
        FakeDriver(),
        progress=lambda tally, facts: seen.append(tally.done),
    )
    assert seen == sorted(seen) and seen[0] == 0 and seen[-1] <= 10
