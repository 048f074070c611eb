"""The workers of `covist batch` on Ray: the same class as without Ray, in any number of processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from covist.batch.drivers import Result
from covist.batch.rows import Block
from covist.batch.spec import Facts, WorkerSpec
from covist.cluster.errors import refusal
from covist.cluster.start import Reservation, gpus_for, ray_running, worker_reservation

PIECE_ROWS = 128
"""Rows per call of a worker: enough to form batches, few enough to repeat when a worker dies."""
CALLS = 2
"""Pieces that a worker has at a time: it works on one, and the next is there when it is done."""
RETRIES = 5
"""How often rows are tried again after their worker died; rows that kill every worker must not do so for ever."""


@contextmanager
def ray_driver(address: str, workers: int | None, device: str) -> Iterator[RayDriver]:
    """A driver while Ray runs. `workers=None` means one per GPU, or one without GPUs."""
    with ray_running(address):
        number = workers or gpus_for(device) or 1
        yield RayDriver(number, worker_reservation(number, device))


class RayDriver:
    """Runs workers on a Ray that is already running."""

    def __init__(self, workers: int, reservation: Reservation):
        self._workers, self._reservation = workers, reservation

    def inspect(self, spec: WorkerSpec) -> Facts:
        """Load the model where workers run, which may be another machine, and report on it."""
        inspecting = ray.remote(_inspect).options(**self._reservation.options, max_retries=RETRIES)
        try:
            return ray.get(inspecting.remote(spec))
        except RayError as error:
            raise refusal("a worker of --ray could not start", error) from None

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        """Answers as workers return them, in any order. Ray replaces a worker that dies, and repeats its calls."""
        actor = ray.remote(BatchWorker).options(**self._reservation.options, max_restarts=-1, max_task_retries=RETRIES)
        workers = [actor.remote(spec) for _ in range(self._workers)]
        free, under_way = workers * CALLS, dict[Any, Any]()  # workers by the calls that they can take and have
        failures: list[Exception] = []
        unread = pieces(blocks, failures)
        try:
            while True:
                while free and (piece := next(unread, None)):
                    worker = free.pop()
                    under_way[worker.answer.remote(piece)] = worker
                if not under_way:
                    break
                (done, *_), _ = ray.wait(list(under_way))
                free.append(under_way.pop(done))
                yield ray.get(done)
        except RayError as error:
            raise refusal("the workers of --ray stopped", error) from None
        finally:
            for worker in workers:
                ray.kill(worker)
        if failures:
            raise failures[0]


class BatchWorker:
    """The worker as an actor: one piece in, its answers out."""

    def __init__(self, spec: WorkerSpec):
        from covist.batch.worker import Worker  # and with it torch, which the driver does without

        self._worker = Worker(spec)

    def answer(self, piece: Block) -> Result:
        return Result(piece.index, self._worker(piece.rows))


def pieces(blocks: Iterable[Block], failures: list[Exception]) -> Iterator[Block]:
    """Split blocks into pieces. They also end where reading fails, so that what was read before is answered."""
    try:
        for block in blocks:
            for start in range(0, len(block.rows), PIECE_ROWS):
                yield Block(block.index, block.rows[start : start + PIECE_ROWS])
    except Exception as failure:  # of the input or the disk
        failures.append(failure)


def _inspect(spec: WorkerSpec) -> Facts:
    from covist.batch.worker import facts_about, load

    return facts_about(spec, load(spec))
