"""A service in its own process, without HTTP: the routes are in the process that clients connect to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from prometheus_client.metrics_core import Metric

from covist.api.setup import Setup
from covist.serve.errors import Refusal
from covist.serve.schema import ChatRequest
from covist.serve.sequence import Event, Finished
from covist.serve.spec import ServiceSpec

SHOWN = ("covist_batch_size", "covist_queue", "covist_running")
"""Metrics that only a replica knows; requests and answers are counted where they arrive."""


@dataclass(frozen=True)
class Accepted:
    """What is known about an accepted request before its first event."""

    replica: str
    setup: Setup
    prompt_tokens: int


Message = Accepted | Refusal | tuple[int, Event]


class Replica:
    """The class that Ray Serve runs; the answer to a request is a stream of messages."""

    def __init__(self, spec: ServiceSpec):
        from ray import serve

        self._service = spec.build()
        self._id = serve.get_replica_context().replica_id.unique_id

    def describe(self) -> tuple[str, Setup]:
        """The model's name, and the setup of requests that choose none."""
        return self._service.name, self._service.default

    async def answer(self, wanted: ChatRequest) -> AsyncIterator[Message]:
        """`Accepted`, then the events of the request, or a refusal at any time. Cancelling it stops the generation."""
        try:
            job, answer = await self._service.admit(wanted)
            yield Accepted(self._id, answer.setup, answer.prompt_tokens)
            async for index, event in job.follow():
                yield index, _light(event)
        except Refusal as refusal:  # sent as a message, because Ray would wrap an exception in its own
            yield refusal

    def figures(self) -> tuple[str, list[Metric]]:
        """The name of the replica, and the current values of its metrics."""
        return self._id, self._service.metrics.families(SHOWN)

    def check_health(self) -> None:
        """Ray replaces a replica that raises here."""
        if not self._service.is_ready:
            raise RuntimeError("no request can be answered here: the accelerator failed, or the service is closed")


def _light(event: Event) -> Event:
    """The event without the reports on images, which only drawings need."""
    return replace(event, cost=replace(event.cost, images=())) if isinstance(event, Finished) else event
