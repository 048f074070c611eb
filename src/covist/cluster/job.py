"""A request that a replica answers, seen from the event loop of the process that clients talk to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayActorError, RayError, TaskCancelledError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from covist.cluster.replica import Accepted, Message
from covist.serve.errors import Refusal, gone
from covist.serve.job import ChatJob
from covist.serve.logs import log
from covist.serve.presence import within


class RemoteJob(ChatJob):
    """Passes on the events of a replica; cancelling it also cancels the request there.

    stream: Ray Serve's stream of messages, after the first one
    """

    def __init__(self, stream: Any, choices: int, deadline: float):
        super().__init__(choices, deadline)
        self._stream = stream
        self._reading = asyncio.create_task(self._read())

    def cancel(self) -> None:
        self._reading.cancel()
        self._stream.cancel()

    async def _read(self) -> None:
        try:
            with clean_errors():
                async for message in self._stream:
                    self._events.put_nowait(message)
        except Refusal as refusal:
            self._events.put_nowait(refusal)


async def opened(stream: Any, deadline: float) -> Accepted:
    """Read the first message of a stream: a replica has accepted the request; a refusal is raised."""
    try:
        first = await within(deadline, _first(stream))
    except (Refusal, asyncio.CancelledError):
        stream.cancel()
        raise
    if isinstance(first, Refusal):
        raise first
    assert isinstance(first, Accepted), "a replica accepts before it answers"
    return first


async def _first(stream: Any) -> Message:
    with clean_errors():
        return await anext(stream)


@contextmanager
def clean_errors() -> Iterator[None]:
    """Turn what Ray raises into refusals of one line."""
    try:
        yield
    except TaskCancelledError:  # by us, because the client is gone
        raise gone() from None
    except (RayActorError, WorkerCrashedError, DeploymentUnavailableError) as error:
        log("replica lost", error=type(error).__name__)
        message = "the replica that answered has died; send the request again"
        raise Refusal(503, "replica_lost", message, headers={"Retry-After": "1"}) from None
    except BackPressureError:
        message = "too many requests are waiting; try again later"
        raise Refusal(429, "queue_full", message, headers={"Retry-After": "1"}) from None
    except (RayError, RayServeException) as error:
        log("replica failed", error=type(error).__name__)
        raise Refusal(500, "generation_failed", "the generation failed; other requests are not affected") from None
