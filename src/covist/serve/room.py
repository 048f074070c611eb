"""Room for the requests in progress: an amount of bytes or pixels that they share."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from covist.serve.errors import busy


class Room:
    """An amount that requests take parts of, from one event loop.

    >>> room = Room(10)
    >>> room.take(8), room.take(8), room.taken
    (True, False, 8)
    """

    def __init__(self, size: int):
        self._size = size
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, amount: int) -> bool:
        """Take a part at once; False if there is not enough room."""
        if self.taken + amount > self._size:
            return False
        self.taken += amount
        return True

    async def wait(self, amount: int) -> None:
        """Take a part as soon as there is room, in the order of arrival."""
        if not self._waiting and self.take(amount):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.free(amount)
            else:
                self._waiting.remove((amount, turn))
                self._pass_on()
            raise

    def free(self, amount: int) -> None:
        """Give a part back."""
        self.taken -= amount
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting and self.take(self._waiting[0][0]):
            self._waiting.popleft()[1].set_result(None)


class RoomClaim:
    """What one request has taken of a room, until the end of a `with` block."""

    def __init__(self, room: Room, what: str):
        """`what` names the amount for clients that find no room."""
        self._room, self._what, self._amount = room, what, 0

    def grow(self, amount: int) -> None:
        """Take more, or refuse the request."""
        if not self._room.take(amount):
            raise busy(self._what)
        self._amount += amount

    def free(self) -> None:
        """Give everything back; a second call does nothing."""
        self._room.free(self._amount)
        self._amount = 0

    def __enter__(self) -> RoomClaim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.free()
