"""A job: blocks of rows go out to a driver, answers come back and become parts.

A block is `part_rows` successive rows of the input and becomes one part. A part that exists is finished; journals hold
the answers of the others. So the same command continues a job that was killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from covist.batch.answers import RowAnswer
from covist.batch.drivers import Driver, Result
from covist.batch.ids import Ids
from covist.batch.manifest import Order, check_manifest, new_manifest
from covist.batch.rows import Block, Row
from covist.batch.sources import Source, Survey, open_source
from covist.batch.spec import Facts
from covist.batch.store import Store
from covist.batch.tally import JobTally
from covist.errors import CovistError

Progress = Callable[[JobTally, Facts], None]
"""Called when the work begins, and whenever answers have been stored."""


@dataclass(frozen=True)
class Finished:
    """The outcome of a job over all runs of its command.

    rows_now: rows that workers answered, or failed to answer, in this run
    """

    tally: JobTally
    rows_now: int
    parts: int
    facts: Facts


@dataclass
class _Open:
    """A part that is not complete yet."""

    order: list[str]  # ids, as in the input
    answers: dict[str, RowAnswer]

    @property
    def is_complete(self) -> bool:
        return len(self.answers) == len(self.order)


def run(
    order: Order,
    out: str | Path,
    driver: Driver,
    *,
    retry_errors: bool = False,
    progress: Progress | None = None,
) -> Finished:
    """Answer every row of the input that has no answer in `out` yet.

    retry_errors: answer failed rows again
    """
    source = open_source(order.input)
    survey = source.survey()
    if not survey.rows:
        raise CovistError(f"{order.input} contains no {'images' if source.has_unique_ids else 'rows'}")
    order = replace(order, spec=replace(order.spec, folder=source.folder.absolute()))
    store = Store(out, order.format)
    try:
        return _run(order, source, survey, store, driver, retry_errors, progress)
    finally:
        store.close()


def _run(
    order: Order,
    source: Source,
    survey: Survey,
    store: Store,
    driver: Driver,
    retry_errors: bool,
    progress: Progress | None,
) -> Finished:
    stored = store.read_manifest()
    facts = None if stored is None else check_manifest(stored, order, survey, store.directory)
    if facts is None:
        facts = driver.inspect(order.spec)
        store.begin(new_manifest(order, survey, facts))
    job = BatchJob(source, survey.rows, store, order.part_rows, retry_errors)
    try:
        if job.is_open:
            report = progress or (lambda tally, facts: None)
            report(job.tally, facts)
            for result in driver.run(order.spec.with_facts(facts), job.blocks()):
                job.take(result)
                report(job.tally, facts)
    finally:
        job.close()
    return Finished(job.tally, job.rows_now, job.parts, facts)


class BatchJob:
    """Reads the input block by block and keeps track of answers and parts."""

    def __init__(self, source: Source, rows: int, store: Store, part_rows: int, retry_errors: bool = False):
        self._source, self._store, self._part_rows = source, store, part_rows
        self.parts = -(-rows // part_rows)
        self.tally = JobTally(rows)
        self.rows_now = 0  # from the driver, not from files
        self._ids = None if source.has_unique_ids else Ids(store.ids_path)
        self._pending: dict[int, _Open] = {}  # blocks that the driver is working on
        self._books = Lock()  # a driver may ask for blocks in another thread
        self._todo = bytearray(self.parts)  # 1 for every part still to be written
        for index in range(self.parts):
            self._todo[index] = self._must_write(index, retry_errors)

    @property
    def is_open(self) -> bool:
        return any(self._todo)

    def blocks(self) -> Iterator[Block]:
        """The rows that are still to be answered, part by part."""
        with self._store.writing():
            first = self._first_row()
        rows = self._source.rows(first)
        for index in range(first // self._part_rows, self.parts):
            block = list(islice(rows, self._size(index)))
            if len(block) < self._size(index):
                raise CovistError(f"{self._source.path} changed while it was read: it has fewer rows now")
            with self._books:
                with self._store.writing():
                    owned = block if self._ids is None else self._ids.own(block)
                waiting = self._begin(index, owned) if self._todo[index] else []
            if waiting:
                yield Block(index, waiting)

    def take(self, result: Result) -> None:
        """Store answers; a block that has all of its answers becomes a part."""
        with self._books:
            opened = self._pending.get(result.index)
            if opened is not None:  # else it was answered before, by a worker that was given up too early
                wanted = set(opened.order).difference(opened.answers)
                fresh = [answer for answer in result.answers if answer.id in wanted]
                self._store.note(result.index, fresh)
                self.rows_now += len(fresh)
                self._add(result.index, opened, fresh)

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()

    def _first_row(self) -> int:
        """The row at which reading begins: rows of finished parts are skipped if their ids are known."""
        first = self._todo.index(1) * self._part_rows
        return first if self._ids is None else min(first, self._ids.known // self._part_rows * self._part_rows)

    def _must_write(self, index: int, retry_errors: bool) -> bool:
        """Whether a part is missing, or has errors to be tried again; also adds its answers to the tally."""
        if not self._store.has_part(index):
            return True
        answers = self._store.read_part(index)
        self.tally.add(answers)
        self.tally.repeated += self._size(index) - len(answers)
        return retry_errors and any(answer.error is not None for answer in answers)

    def _size(self, index: int) -> int:
        return min(self._part_rows, self.tally.rows - index * self._part_rows)

    def _begin(self, index: int, rows: list[Row]) -> list[Row]:
        """Open a part with the answers that it already has; returns the rows that a worker must answer."""
        opened = self._pending[index] = _Open([row.id for row in rows], {})
        if self._store.has_part(index):  # its errors are tried again
            known = self._store.read_part(index)
            self.tally.add(known, -1)
            found = [*known, *self._store.recover(index)]
            found = [answer for answer in found if answer.error is None]
        else:
            self.tally.repeated += self._size(index) - len(rows)
            found = self._store.recover(index)
        ids = set(opened.order)
        unique = {answer.id: answer for answer in found if answer.id in ids}
        bad = {row.id: RowAnswer(row.id, error=row.error) for row in rows if row.error is not None}
        self._add(index, opened, [*{**unique, **bad}.values()])
        return [row for row in rows if row.id not in opened.answers]

    def _add(self, index: int, opened: _Open, answers: list[RowAnswer]) -> None:
        opened.answers.update((answer.id, answer) for answer in answers)
        self.tally.add(answers)
        if opened.is_complete:
            self._store.write_part(index, [opened.answers[name] for name in opened.order])
            del self._pending[index]


def summary(order: Order, out: Path, finished: Finished, wall_seconds: float) -> dict[str, Any]:
    """The outcome of a job as plain values, for JSON."""
    tally = finished.tally
    return {
        "input": str(order.input),
        "out": str(out),
        "model": order.spec.model,
        "method": order.spec.setup.method,
        "budget": str(order.spec.setup.budget),
        "parts": finished.parts,
        **tally.to_dict(),
        "kv_bytes_saved": tally.tokens_saved * finished.facts.kv_bytes_per_token,
        "rows_now": finished.rows_now,
        "seconds_now": wall_seconds,
    }
