"""A job: blocks of rows go out to a driver, answers come back and become parts.

A block is up to `part_rows` successive rows of the input and becomes one part. A part that exists is finished; journals
hold the answers of the others. So the same command continues a job that was killed at any moment.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from covist.batch.answers import PartRow, RowAnswer
from covist.batch.drivers import Driver, Result
from covist.batch.ids import Ids
from covist.batch.manifest import Extent, Order, check_settings, grown_manifest, new_manifest
from covist.batch.rows import Block, Row
from covist.batch.source import Source, Survey
from covist.batch.sources import opened
from covist.batch.spec import Facts, WorkerSpec
from covist.batch.store import Store, is_begun
from covist.batch.tally import JobTally
from covist.errors import CovistError
from covist.request.formats import HEIC_ENDINGS, INSTALL_HEIC

MOST_ENDINGS = 5
"""Kinds of files that a note about a folder names."""
Progress = Callable[[JobTally, Facts], None]
"""Called when the work begins, and whenever answers have been stored."""


@dataclass(frozen=True)
class Finished:
    """The outcome of a job over all runs of its command.

    rows_now: rows that workers answered, or failed to answer, in this run
    input: what the input is called
    left_out: files of a folder that are not read: how many by their ending
    """

    tally: JobTally
    rows_now: int
    parts: int
    facts: Facts
    input: str = ""
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass
class _Open:
    """A part that is not complete yet."""

    rows: list[Row]  # as in the input, without what only workers need
    answers: dict[str, RowAnswer]

    @property
    def ids(self) -> list[str]:
        return [row.id for row in self.rows]

    @property
    def is_complete(self) -> bool:
        return len(self.answers) == len(self.rows)


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
    with opened(order.input) as source:
        survey = source.survey()
        if not survey.rows:
            raise CovistError(f"{source.name} contains no {source.unit}{left_out(survey.left_out, ': ')}")
        if survey.left_out:
            warnings.warn(f"{source.name}{left_out(survey.left_out, ': ')}", stacklevel=2)
        if not is_begun(out):  # before anything is written or loaded
            source.check(order.spec.prompt)
        store = Store(out, order.format)
        try:
            stored = store.read_manifest()
            if stored is None:
                stored = _begun(order, source, survey, store, driver)
            else:
                stored = _resumed(order, source, store, stored)
            facts, rows = Facts(**stored["model"]), Extent(tuple(stored["input"]["rows"]), order.part_rows)
            job = BatchJob(source, rows, stored["input"]["columns"], store, retry_errors)
            _work(job, driver, order.spec.with_facts(facts), lambda tally: progress and progress(tally, facts))
        finally:
            store.close()
    return Finished(job.tally, job.rows_now, job.parts, facts, source.name, survey.left_out)


def _work(job: BatchJob, driver: Driver, spec: WorkerSpec, report: Callable[[JobTally], object]) -> None:
    try:
        if job.is_open:
            report(job.tally)
            for result in driver.run(spec, job.blocks()):
                job.take(result)
                report(job.tally)
    finally:
        job.close()


def _begun(order: Order, source: Source, survey: Survey, store: Store, driver: Driver) -> dict[str, Any]:
    """The manifest of a new job."""
    survey = source.begin(store.roster_path, survey)
    manifest = new_manifest(order, source.name, survey, source.look().columns, driver.inspect(order.spec))
    store.begin(manifest)
    return manifest


def _resumed(order: Order, source: Source, store: Store, stored: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a job that goes on; what has become of its input since is told in warnings."""
    check_settings(stored, order, store.directory)
    known = stored["input"]["rows"][-1]
    change = source.resume(store.roster_path, known, stored["input"]["fingerprint"])
    for told in change.notes(source.name, known):
        warnings.warn(told, stacklevel=2)
    if change.added:
        stored = grown_manifest(stored, source.name, source.survey(), source.look(), known + change.added)
        store.write_manifest(stored)
    return stored


def left_out(endings: dict[str, int], before: str = "") -> str:
    """Which files of a folder are not read, and what would read them.

    >>> left_out({".heic": 2, ".svg": 1})
    "left out: 2 .heic, 1 .svg (HEIC needs pip install 'covist[heic]')"
    """
    if not endings:
        return ""
    told = [f"{count} {ending}" for ending, count in endings.items()]
    more = f" and {len(told) - MOST_ENDINGS} more kinds" if len(told) > MOST_ENDINGS else ""
    advice = f" (HEIC needs {INSTALL_HEIC})" if set(HEIC_ENDINGS).intersection(endings) else ""
    return f"{before}left out: {', '.join(told[:MOST_ENDINGS])}{more}{advice}"


class BatchJob:
    """Reads the input block by block and keeps track of answers and parts."""

    def __init__(
        self, source: Source, extent: Extent, columns: dict[str, str], store: Store, retry_errors: bool = False
    ):
        self._source, self._store, self._columns = source, store, columns
        self._parts = extent.parts()  # the rows of each
        self.parts = len(self._parts)
        self.tally = JobTally(extent.rows)
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
            first = self._first_part()
        rows = self._source.rows(self._parts[first].start)
        for index in range(first, self.parts):
            block = list(islice(rows, len(self._parts[index])))
            if len(block) < len(self._parts[index]):
                raise CovistError(f"{self._source.name} changed while it was read: it has fewer rows now")
            with self._books:
                with self._store.writing():
                    owned = block if self._ids is None else self._ids.own(block)
                waiting = self._begin(index, owned) if self._todo[index] else []
            if waiting:
                yield Block(index, [replace(row, given={}) for row in waiting])

    def take(self, result: Result) -> None:
        """Store answers; a block that has all of its answers becomes a part."""
        with self._books:
            opened = self._pending.get(result.index)
            if opened is not None:  # else it was answered before, by a worker that was given up too early
                wanted = set(opened.ids).difference(opened.answers)
                fresh = [answer for answer in result.answers if answer.id in wanted]
                self._store.note(result.index, fresh)
                self.rows_now += len(fresh)
                self._add(result.index, opened, fresh)

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()

    def _first_part(self) -> int:
        """The part at which reading begins: rows of finished parts are skipped if their ids are known."""
        first = self._todo.index(1)
        if self._ids is None:
            return first
        starts = [rows.start for rows in self._parts]
        return min(first, bisect_right(starts, self._ids.known) - 1)

    def _must_write(self, index: int, retry_errors: bool) -> bool:
        """Whether a part is missing, or has errors to be tried again; also adds its answers to the tally."""
        if not self._store.has_part(index):
            return True
        answers = self._store.read_part(index)
        self.tally.add(answers)
        self.tally.repeated += len(self._parts[index]) - len(answers)
        return retry_errors and any(answer.error is not None for answer in answers)

    def _begin(self, index: int, rows: list[Row]) -> list[Row]:
        """Open a part with the answers that it already has; returns the rows that a worker must answer."""
        opened = self._pending[index] = _Open([replace(row, content={}) for row in rows], {})
        if self._store.has_part(index):  # its errors are tried again
            known = self._store.read_part(index)
            self.tally.add(known, -1)
            found = [*known, *self._store.recover(index)]
            found = [answer for answer in found if answer.error is None]
        else:
            self.tally.repeated += len(self._parts[index]) - len(rows)
            found = self._store.recover(index)
        ids = set(opened.ids)
        unique = {answer.id: answer for answer in found if answer.id in ids}
        bad = {row.id: RowAnswer(row.id, error=row.error) for row in rows if row.error is not None}
        self._add(index, opened, [*{**unique, **bad}.values()])
        return [row for row in rows if row.id not in opened.answers]

    def _add(self, index: int, opened: _Open, answers: list[RowAnswer]) -> None:
        opened.answers.update((answer.id, answer) for answer in answers)
        self.tally.add(answers)
        if opened.is_complete:
            rows = [PartRow(opened.answers[row.id], row.number + 1, row.given) for row in opened.rows]
            self._store.write_part(index, rows, self._columns)
            del self._pending[index]


def summary(order: Order, out: Path, finished: Finished, wall_seconds: float) -> dict[str, Any]:
    """The outcome of a job as plain values, for JSON."""
    tally, setup = finished.tally, order.spec.with_facts(finished.facts).setup
    return {
        "input": finished.input,
        "out": str(out),
        "model": order.spec.model,
        "method": setup.method,
        "budget": str(setup.budget),
        "parts": finished.parts,
        **tally.to_dict(),
        "left_out": finished.left_out,
        "kv_bytes_saved": tally.tokens_saved * finished.facts.kv_bytes_per_token,
        "rows_now": finished.rows_now,
        "seconds_now": wall_seconds,
    }
