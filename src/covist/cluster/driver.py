"""The workers of `covist batch` under Ray Data: the same class as without Ray, in any number of processes."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow
import ray
from ray.data import ActorPoolStrategy, DataContext, read_datasource
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from covist.batch.drivers import Result
from covist.batch.rows import Block
from covist.batch.spec import Facts, WorkerSpec
from covist.cluster.errors import refusal
from covist.cluster.feed import PIECE, Feed, FeedSource, pieces
from covist.cluster.start import Share, gpus_for, ray_running, worker_share

RESULT = "result"
"""The column of answers, as bytes."""
RETRIES = 5
"""How often rows are tried again after their worker died; rows that kill every worker must not do so for ever."""


@contextmanager
def ray_driver(address: str, workers: int | None, device: str) -> Iterator[RayDriver]:
    """A driver while Ray runs. `workers=None` means one per GPU, or one without GPUs."""
    with ray_running(address):
        number = workers or gpus_for(device) or 1
        yield RayDriver(number, worker_share(number, device))


class RayDriver:
    """Runs workers on a Ray that is already running."""

    def __init__(self, workers: int, share: Share):
        self._workers, self._share = workers, share

    def look(self, spec: WorkerSpec) -> Facts:
        """Load the model where workers run, which may be another machine, and report on it."""
        looking = ray.remote(_look).options(**self._share.options, max_retries=RETRIES)
        try:
            return ray.get(looking.remote(spec))
        except RayError as error:
            raise refusal("a worker of --ray could not start", error) from None

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        """Answers as workers return them, in any order."""
        feed = ray.remote(Feed).options(num_cpus=0, **_beside_us()).remote(4 * self._workers + 2)
        pump = _Pump(feed, blocks)
        pump.start()
        try:
            for found in self._answers(spec, feed):
                number, result = pickle.loads(found)
                if result is not None:
                    yield result
                feed.answered.remote(number)
        except RayError as error:
            raise refusal("the workers of --ray stopped", error) from None
        finally:
            ray.kill(feed)
            pump.join()
        if pump.failure is not None:
            raise pump.failure

    def _answers(self, spec: WorkerSpec, feed: Any) -> Iterator[bytes]:
        """The stream of answers: Ray Data reads the feed and passes its pieces to the workers."""
        _settle_context()
        rows = read_datasource(FeedSource(feed), override_num_blocks=1, ray_remote_args={"num_cpus": 0, **_beside_us()})
        answered = rows.map_batches(
            PieceWorker,
            fn_constructor_args=(spec,),
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=self._workers, max_tasks_in_flight_per_actor=2),
            max_restarts=-1,
            max_task_retries=RETRIES,
            **self._share.options,
        )
        # Prefetching would hold back finished answers, and a killed job would lose them.
        for batch in answered.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from batch[RESULT].to_pylist()


class PieceWorker:
    """The worker as `map_batches` calls it: one piece in, its answers out."""

    def __init__(self, spec: WorkerSpec):
        from covist.batch.worker import Worker

        self._worker = Worker(spec)

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        results = [pickle.dumps(self._answer(*pickle.loads(one))) for one in batch[PIECE].to_pylist()]
        return pyarrow.table({RESULT: pyarrow.array(results, pyarrow.large_binary())})

    def _answer(self, number: int, piece: bytes) -> tuple[int, Result | None]:
        if not piece:  # it was read again after it had been answered
            return number, None
        block: Block = pickle.loads(piece)
        return number, Result(block.index, self._worker(block.rows))


class _Pump(threading.Thread):
    """A thread that puts the blocks of a job into a feed, as there is room."""

    def __init__(self, feed: Any, blocks: Iterable[Block]):
        super().__init__(name="covist-feed", daemon=True)
        self._feed, self._blocks = feed, blocks
        self.failure: Exception | None = None

    def run(self) -> None:
        with suppress(RayError):  # the feed has ended: no more pieces are needed
            try:
                for piece in pieces(self._blocks):
                    ray.get(self._feed.put.remote(pickle.dumps(piece)))
            except RayError:
                raise
            except Exception as failure:  # of the input or the disk; raised after the pieces under way are done
                self.failure = failure
            ray.get(self._feed.end.remote())


def _look(spec: WorkerSpec) -> Facts:
    from covist.batch.worker import load, look_at

    return look_at(spec, load(spec))


def _beside_us() -> dict[str, Any]:
    """Options that place an actor on the machine of this process."""
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}


def _settle_context() -> None:
    context = DataContext.get_current()
    context.enable_progress_bars = False  # the command line shows its own
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # one piece per block; larger blocks would wait until they are full
    logging.getLogger("ray.data").setLevel(logging.ERROR)
