"""Drivers run the workers. A driver takes blocks and returns answers, in any order and in pieces of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from covist.batch.answers import RowAnswer
from covist.batch.rows import Block
from covist.batch.spec import Facts, WorkerSpec

if TYPE_CHECKING:
    from covist.request.loading import LoadedModel


@dataclass(frozen=True)
class Result:
    """Answers to some rows, or all, of block number `index`."""

    index: int
    answers: list[RowAnswer]


class Driver(Protocol):
    """What a job requires of a driver.

    It takes blocks as it has room for them, never all at once. It may answer rows twice, because it replaces a worker
    that died; the job keeps the first answer.
    """

    def inspect(self, spec: WorkerSpec) -> Facts:
        """Load the model once and report what workers must agree on."""

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        """Answer every row of every block."""


class LocalDriver:
    """One worker, in this process."""

    def __init__(self) -> None:
        self._loaded: LoadedModel | None = None

    def inspect(self, spec: WorkerSpec) -> Facts:
        from covist.batch.worker import facts_about, load

        self._loaded = load(spec)
        return facts_about(spec, self._loaded)

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        from covist.batch.worker import Worker  # and with it torch

        worker = Worker(spec, self._loaded)
        try:
            for block in blocks:
                for answers in worker.stream(block.rows):
                    yield Result(block.index, answers)
        finally:
            worker.close()
