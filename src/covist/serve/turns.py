"""Turns: batches share the model token by token."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A fair lock: one holder at a time, in the order of the requests.

    With an ordinary lock, a thread that releases it and asks again usually gets it at once, and others starve.

    >>> turns = Turns()
    >>> with turns:
    ...     turns.pass_on()
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # the first one holds the turn

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
        """Let all waiting threads have a turn first."""
        if len(self._line) > 1:
            self.__exit__()
            self.__enter__()

    @property
    def waiting(self) -> int:
        """The number of threads that wait."""
        return max(0, len(self._line) - 1)
