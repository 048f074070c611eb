"""A service in a process of its own, without HTTP: the routes are in the process that clients talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from prometheus_client.metrics_core import Metric

from covist.serve.errors import Refusal
from covist.serve.schema import ChatRequest
from covist.serve.sequence import Event, Finished
from covist.serve.settings import Setting
from covist.serve.spec import ServiceSpec

SHOWN = ("covist_batch_size", "covist_queue", "covist_running")
"""Metrics that only a replica can know; requests and answers are counted where they come in."""


@dataclass(frozen=True)
class Accepted:
    """What the answer to a request needs to know before its events."""

    replica: str
    setting: Setting
    prompt_tokens: int


Message = Accepted | Refusal | tuple[int, Event]


class Replica:
    """The class that Ray Serve runs; a request is one stream of messages."""

    def __init__(self, spec: ServiceSpec):
        from ray import serve

        self._service = spec.build()
        self._id = serve.get_replica_context().replica_id.unique_id

    def describe(self) -> tuple[str, Setting]:
        """The model's name, and how requests are compressed that do not say."""
        return self._service.name, self._service.default

    async def answer(self, wanted: ChatRequest) -> AsyncIterator[Message]:
        """`Accepted` and then its events, or a refusal at any time. Cancelled, it stops writing."""
        try:
            job, answer = await self._service.admit(wanted)
            yield Accepted(self._id, answer.setting, answer.prompt_tokens)
            async for index, event in job.follow():
                yield index, _light(event)
        except Refusal as refusal:  # as a message: raised, Ray would wrap it into its own errors
            yield refusal

    def figures(self) -> tuple[str, list[Metric]]:
        """Who I am, and the current numbers of my own metrics."""
        return self._id, self._service.metrics.families(SHOWN)

    def check_health(self) -> None:
        """Ray replaces a replica that raises here."""
        if not self._service.is_ready:
            raise RuntimeError("the threads that run batches have ended")


def _light(event: Event) -> Event:
    """Without the reports on images, which only drawings need."""
    return replace(event, cost=replace(event.cost, images=())) if isinstance(event, Finished) else event
