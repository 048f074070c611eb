"""The queue in which answers wait for a batch of their setting."""

from __future__ import annotations

import math
import threading
from time import monotonic

from covist.serve.errors import Refusal, draining
from covist.serve.limits import Limits
from covist.serve.sequence import Sequence


class Queue:
    """A bounded queue that returns batches of one setting, the longest waiting first."""

    def __init__(self, limits: Limits, batch_tokens: int | None = None):
        """`batch_tokens`, if the machine allows fewer than the limits."""
        self._limits = limits
        self._batch_tokens = batch_tokens or limits.batch_tokens
        self._changed = threading.Condition()
        self._waiting: list[Sequence] = []
        self._closed: Refusal | None = None  # what those are told who come later

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, sequences: list[Sequence]) -> None:
        """Add all answers of one request, or none."""
        with self._changed:
            self.check_room(len(sequences), _prompt_bytes(sequences))
            self._waiting += sequences
            self._changed.notify_all()

    def check_room(self, count: int, size: int = 0) -> None:
        """Refuse `count` more answers if there is no room; the time that the oldest has waited tells when to retry.

        size: bytes of their prompts, which hold the images; one request always fits
        """
        with self._changed:
            if self._closed is not None:
                raise self._closed
            self._forget_cancelled()
            held = _prompt_bytes(self._waiting)
            is_full = len(self._waiting) + count > self._limits.queue
            if is_full or (held and held + size > self._limits.queue_bytes):
                oldest = monotonic() - self._waiting[0].arrived if self._waiting else 0.0
                seconds = str(max(1, math.ceil(oldest)))
                message = f"{len(self._waiting)} answers are already waiting; try again in {seconds} s"
                raise Refusal(429, "queue_full", message, headers={"Retry-After": seconds})

    def wait(self) -> bool:
        """Wait until a batch is full or its first answer has waited long enough; False when closed and empty."""
        with self._changed:
            while True:
                self._forget_cancelled()
                batch, is_full = self._next_batch()
                if not batch and self._closed is not None:
                    return False
                left = batch[0].arrived + self._limits.batch_milliseconds / 1000 - monotonic() if batch else None
                if left is not None and (is_full or self._closed is not None or left <= 0):
                    return True
                self._changed.wait(left)

    def take(self) -> list[Sequence]:
        """The next batch; empty if another worker was faster."""
        with self._changed:
            self._forget_cancelled()
            batch, _ = self._next_batch()
            taken = set(map(id, batch))
            self._waiting = [one for one in self._waiting if id(one) not in taken]
            return batch

    def close(self, reason: Refusal | None = None) -> None:
        """Accept no more answers; waiting ones are still returned."""
        with self._changed:
            self._closed = reason or self._closed or draining()
            self._changed.notify_all()

    def clear(self, reason: Refusal) -> None:
        """Accept no more answers, and end those that wait."""
        self.close(reason)
        with self._changed:
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for one in waiting:
            one.fail(reason)

    def _forget_cancelled(self) -> None:
        self._waiting = [one for one in self._waiting if not one.cancelled]

    def _next_batch(self) -> tuple[list[Sequence], bool]:
        """The next answers that fit into one batch, and whether the batch is full."""
        batch: list[Sequence] = []
        for one in self._waiting:
            if batch and not _are_alike(one, batch[0]):
                continue
            if batch and not self._fits([*batch, one]):
                return batch, True
            batch.append(one)
        return batch, len(batch) == self._limits.batch_size

    def _fits(self, batch: list[Sequence]) -> bool:
        prompt, output = max(one.prompt.kept_tokens for one in batch), max(one.max_tokens for one in batch)
        return len(batch) <= self._limits.batch_size and len(batch) * (prompt + output) <= self._batch_tokens


def _prompt_bytes(sequences: list[Sequence]) -> int:
    """Bytes of some prompts; the answers of one request share a prompt."""
    return sum({id(one.prompt): one.prompt.request.nbytes for one in sequences}.values())


def _are_alike(one: Sequence, other: Sequence) -> bool:
    """Whether two answers may share a batch: same setup, and neither so long that the other is mostly padding."""
    shorter, longer = sorted((one.prompt.length, other.prompt.length))
    return one.setup == other.setup and longer <= 2 * shorter
