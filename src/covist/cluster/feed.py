"""Blocks on their way from the job to Ray Data: handed out by number, a few at a time.

Ray Data repeats work by reading its input again, so a number must give the same piece each time: a piece is kept until
it is answered. New pieces are added only while few wait for their answers, so memory does not grow with the number of
rows.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from covist.batch.rows import Block

PIECE_ROWS = 128
"""Rows per call of a worker: enough to form batches, few enough to repeat when a worker dies."""
PIECE = "piece"
"""The column of pieces, as bytes that Ray Data moves without reading them."""


def pieces(blocks: Iterable[Block]) -> Iterator[Block]:
    """Split blocks into pieces."""
    for block in blocks:
        for start in range(0, len(block.rows), PIECE_ROWS):
            yield Block(block.index, block.rows[start : start + PIECE_ROWS])


class Feed:
    """An actor between the job, which puts pieces in, and Ray Data, which reads them."""

    def __init__(self, room: int):
        """`room` pieces may wait for their answers."""
        self._room, self._count, self._ended = room, 0, False
        self._waiting: dict[int, bytes] = {}
        self._changed = asyncio.Condition()

    async def put(self, piece: bytes) -> None:
        """Add a piece as soon as there is room for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < self._room)
            self._waiting[self._count] = piece
            self._count += 1
            self._changed.notify_all()

    async def end(self) -> None:
        """Declare that no more pieces will come."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def get(self, number: int) -> bytes | None:
        """A piece that waits for its answers; empty if it has been answered; None after the last."""
        async with self._changed:
            await self._changed.wait_for(lambda: number < self._count or self._ended)
            return self._waiting.get(number, b"") if number < self._count else None

    async def answered(self, number: int) -> None:
        """Drop a piece that has been answered."""
        async with self._changed:
            self._waiting.pop(number, None)
            self._changed.notify_all()


class FeedSource(Datasource):
    """All pieces of a feed as one stream, read by one task; Ray Data passes them to workers as they become free."""

    def __init__(self, feed: Any):
        self._feed = feed

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *others: Any, **options: Any) -> list[ReadTask]:
        feed = self._feed
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(lambda: read_feed(feed), unknown)]


def read_feed(feed: Any) -> Iterator[pyarrow.Table]:
    """One row per piece, with its number, which tells its answers from those of other pieces."""
    import ray

    number = 0
    while (piece := ray.get(feed.get.remote(number))) is not None:
        yield pyarrow.table({PIECE: pyarrow.array([pickle.dumps((number, piece))], pyarrow.large_binary())})
        number += 1
