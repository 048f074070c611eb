"""Whose turn it is: batches share the model token by token."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """One holder at a time, in the order of asking.

    A lock would do for safety; but a thread that releases one and asks again usually gets it, and the others starve.

    >>> turns = Turns()
    >>> with turns:
    ...     turns.pass_on()
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # the first has its turn

    def __enter__(self) -> None:
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            self._changed.wait_for(lambda: self._line[0] is ticket)

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()

    def pass_on(self) -> None:
        """Let everybody who waits take a turn first."""
        if len(self._line) > 1:
            self.__exit__()
            self.__enter__()

    @property
    def waiting(self) -> int:
        """How many wait for the holder."""
        return max(0, len(self._line) - 1)
