"""One request in the house: what happens to its answers, seen from the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

from covist.serve.body import GONE
from covist.serve.errors import Refusal
from covist.serve.sequence import Event, Failed, Finished, Sequence


class Job(ABC):
    """Carries events from whoever writes the answers to the task that sends them."""

    def __init__(self, choices: int, deadline: float):
        """`deadline` is in the time of the event loop."""
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event] | Refusal] = asyncio.Queue()
        self._choices, self._deadline = choices, deadline

    @abstractmethod
    def cancel(self) -> None:
        """Free the places of all choices."""

    async def follow(self) -> AsyncIterator[tuple[int, Event]]:
        """What happens to each choice, until all are finished. However it ends, nothing goes on being written."""
        left = self._choices
        try:
            while left:
                index, event = await self._next()
                if isinstance(event, Failed):
                    raise Refusal(500, "generation_failed", "the generation broke down; other requests go on")
                left -= isinstance(event, Finished)
                yield index, event
        finally:
            self.cancel()

    def leave(self) -> None:
        """The client has gone."""
        self.cancel()
        self._events.put_nowait(gone())

    async def _next(self) -> tuple[int, Event]:
        try:
            found = await asyncio.wait_for(self._events.get(), max(0.0, self._deadline - self._loop.time()))
        except asyncio.TimeoutError:
            raise out_of_time() from None
        if isinstance(found, Refusal):
            raise found
        return found


class LocalJob(Job):
    """Its answers are written by threads of this process.

    make: builds the sequence of a choice from its number and its listener.
    """

    def __init__(self, choices: int, make: Callable[[int, Callable[[Event], None]], Sequence], deadline: float):
        super().__init__(choices, deadline)
        self.sequences = [make(index, partial(self._hear, index)) for index in range(choices)]

    def cancel(self) -> None:
        for sequence in self.sequences:
            sequence.cancel()

    def _hear(self, index: int, event: Event) -> None:
        """Called from the thread of a batch."""
        with suppress(RuntimeError):  # the loop is closed: the server has gone, and so has the client
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))


def gone() -> Refusal:
    """Nobody reads this answer; it is for the log."""
    return Refusal(GONE, "disconnected", "the client left before its answer was complete")


def out_of_time() -> Refusal:
    """The deadline of a request has passed."""
    return Refusal(504, "timeout", "the request took longer than the server allows")
