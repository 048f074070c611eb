"""What ends a request before its answer is complete: its deadline, its client, or the end of the shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from covist.serve.errors import Refusal, draining, gone, out_of_time

Result = TypeVar("Result")


class Drain:
    """The shutdown, as requests see it."""

    def __init__(self) -> None:
        self.requests = 0
        """Requests for answers that are in progress."""
        self._over = asyncio.Event()

    def end(self) -> None:
        """End the requests that are still in progress."""
        self._over.set()

    async def ended(self) -> Refusal:
        """Wait until the time for the requests in progress is over."""
        await self._over.wait()
        return draining()


async def within(deadline: float, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, or a refusal if it takes longer than up to `deadline`, a time of the event loop."""
    left = deadline - asyncio.get_running_loop().time()
    return await unless(_out_of_time(max(0.0, left)), work)


async def ended(request: Request, drain: Drain) -> Refusal:
    """Wait until the client disconnects, or the shutdown ends; the body has been read, so nothing else can arrive."""
    waiting = {asyncio.ensure_future(_disconnected(request)), asyncio.ensure_future(drain.ended())}
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for one in waiting:
            one.cancel()


async def unless(end: Coroutine[Any, Any, Refusal], work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as `end` returns the reason to refuse the request."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ending.result()
        return working.result()
    finally:
        for one in (working, ending):
            one.cancel()
            one.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task that nobody waits for, or asyncio would log it."""
    if not task.cancelled():
        task.exception()


async def _disconnected(request: Request) -> Refusal:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return gone()


async def _out_of_time(seconds: float) -> Refusal:
    await asyncio.sleep(seconds)
    return out_of_time()
