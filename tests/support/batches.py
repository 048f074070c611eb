"""Batch jobs without a model: rows, and a driver that answers them at once; also run as a program, to be killed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from covist.batch.answers import RowAnswer
from covist.batch.drivers import Result
from covist.batch.job import Finished, run
from covist.batch.manifest import Order
from covist.batch.rows import Block, Row
from covist.batch.spec import Facts, WorkerSpec
from covist.batch.store import Store

FACTS = Facts({"model": "fake"}, 0.1, 8.0, 64)


def reply(row: Row) -> RowAnswer:
    """What the driver answers: a function of the row alone, as of a model with a frozen reference."""
    asked = str(row.content.get("prompt"))
    if asked.startswith("fail"):
        return RowAnswer(row.id, error="it failed")
    return RowAnswer(row.id, asked.upper(), "stop", 10, 4.0, 0.25)


class FakeDriver:
    """Answers without a model, `piece` rows at a time.

    answer: what becomes of a row
    seconds: that a piece takes
    """

    def __init__(self, answer: Callable[[Row], RowAnswer] = reply, piece: int = 3, seconds: float = 0.0):
        self._answer, self._piece, self._seconds = answer, piece, seconds
        self.asked: list[str] = []
        self.specs: list[WorkerSpec] = []

    def inspect(self, spec: WorkerSpec) -> Facts:
        return FACTS

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        self.specs.append(spec)
        for block in blocks:
            for start in range(0, len(block.rows), self._piece):
                rows = block.rows[start : start + self._piece]
                time.sleep(self._seconds)
                self.asked += [row.id for row in rows]
                yield Result(block.index, [self._answer(row) for row in rows])


class Stops(FakeDriver):
    """Ends with an interruption after some pieces."""

    def __init__(self, pieces: int, **options: Any):
        super().__init__(**options)
        self._pieces = pieces

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        for number, result in enumerate(super().run(spec, blocks)):
            if number == self._pieces:
                raise KeyboardInterrupt
            yield result


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def questions(count: int) -> list[dict[str, str]]:
    return [{"id": f"row-{number}", "image": "a.png", "prompt": f"question {number}"} for number in range(count)]


def batch(
    path: Path, out: Path, driver: Any, *, part_rows: int = 4, retry_errors: bool = False, **spec: Any
) -> Finished:
    return run(Order(path, WorkerSpec(**spec), part_rows=part_rows), out, driver, retry_errors=retry_errors)


def parts_of(out: Path) -> list[Path]:
    return sorted(out.glob("part-*"))


def answers_of(out: Path) -> list[RowAnswer]:
    """Every answer of every part, in order."""
    ending = parts_of(out)[0].suffix[1:]
    store = Store(out, ending)
    found = [answer for index in range(len(parts_of(out))) for answer in store.read_part(index)]
    store.close()
    return found


def rows_on_disk(out: Path, part_rows: int) -> int:
    """How far a job is, seen from outside."""
    noted = 0
    for journal in (out / "_work").glob("part-*.jsonl"):
        try:
            noted += journal.read_bytes().count(b"\n")
        except FileNotFoundError:  # it became a part just now
            continue
    return len(parts_of(out)) * part_rows + noted


if __name__ == "__main__":  # python -m support.batches INPUT OUT PART_ROWS SECONDS
    batch(Path(sys.argv[1]), Path(sys.argv[2]), FakeDriver(seconds=float(sys.argv[4])), part_rows=int(sys.argv[3]))
