"""All replicas behind the interface of a single service, so that the same routes serve both."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

from prometheus_client.metrics_core import Metric
from ray import serve

from covist.api.setup import Setup
from covist.cluster.errors import refusal
from covist.cluster.job import RemoteJob, opened
from covist.cluster.replica import Replica
from covist.cluster.scaling import Scaling
from covist.cluster.start import Reservation
from covist.serve.answers import ChatAnswer
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.logs import log
from covist.serve.metrics import Metrics
from covist.serve.room import Room
from covist.serve.schema import ChatRequest
from covist.serve.spec import ServiceSpec

DEPLOYMENT = "replica"
POLL_SECONDS = 1.0
"""The greatest age of the numbers in /ready and /metrics."""


class Fleet:
    """Answers requests with the replicas of one Ray Serve application, from construction until `close()`."""

    streams = None  # a connection could not stay with one replica

    def __init__(
        self, spec: ServiceSpec, scaling: Scaling, reservation: Reservation, name: str, keys: Keys | None = None
    ):
        """`name` is the name of the application: a second one with the same name replaces the first."""
        self.limits, self.keys, self.metrics = spec.limits, keys or Keys(), Metrics()
        self.room = Room(self.limits.bytes_at_once)
        self.is_draining = False
        self._application = name
        handle = _deploy(spec, scaling, reservation, name)
        self._stream = handle.options(stream=True)
        self._all = handle
        described: tuple[str, Setup] = handle.describe.remote().result()
        self.name, self.default = described
        self._running = 0
        self._figures: dict[str, list[Metric]] = {}
        self.metrics.watch("covist_replicas", "Replicas that take requests.", lambda: self._running)
        self.metrics.gather(self._gathered)
        self._closed = threading.Event()
        self._refresh()
        self._polling = threading.Thread(target=self._poll, name="covist-fleet", daemon=True)
        self._polling.start()

    @property
    def is_ready(self) -> bool:
        return not self.is_draining and self._running > 0

    @property
    def is_healthy(self) -> bool:
        """Ray replaces replicas that fail; this process holds no model."""
        return True

    async def admit(self, wanted: ChatRequest, deadline: float | None = None) -> tuple[RemoteJob, ChatAnswer]:
        """Pass a request to the replica that Ray chooses; it waits while dead replicas are being replaced."""
        arrived = monotonic()
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self.limits.request_seconds
        stream = self._stream.answer.remote(wanted)
        accepted = await opened(stream, deadline)
        answer = ChatAnswer.to(wanted, self.name, accepted.setup, accepted.prompt_tokens, arrived)
        return RemoteJob(stream, answer.choices, deadline), answer

    def close(self) -> None:
        """Stop the replicas; their requests have finished by now, or timed out."""
        self.is_draining = True
        self._closed.set()
        self._polling.join()
        serve.delete(self._application)

    def _poll(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                self._refresh()
            except Exception as error:  # Ray is busy; the next attempt may succeed
                log("replicas not seen", error=type(error).__name__)

    def _refresh(self) -> None:
        states = serve.status().applications[self._application].deployments[DEPLOYMENT].replica_states
        self._running = sum(count for state, count in states.items() if state == "RUNNING")
        self._figures = dict(self._all.broadcast("figures").results(timeout_s=10 * POLL_SECONDS))

    def _gathered(self) -> Iterator[Metric]:
        """The metrics of all replicas, each sample with the name of its replica."""
        families: dict[str, Metric] = {}
        for replica, found in self._figures.items():
            for family in found:
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                known.samples += [
                    sample._replace(labels={**sample.labels, "replica": replica}) for sample in family.samples
                ]
        yield from families.values()


def _deploy(spec: ServiceSpec, scaling: Scaling, reservation: Reservation, name: str) -> Any:
    """Start the replicas and wait for them; the handle routes requests to the less busy of two."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # requests are in our own log
    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False, "log_level": "WARNING"})
    number = {"autoscaling_config": scaling.autoscaling} if scaling.autoscaling else {"num_replicas": scaling.replicas}
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options=reservation.options,
        max_ongoing_requests=_at_once(spec.limits),
        graceful_shutdown_timeout_s=spec.limits.drain_seconds,
        health_check_period_s=2.0,
        health_check_timeout_s=60.0,  # a replica whose core runs a long prefill answers late
        max_constructor_retry_count=1,
        **number,
    )(Replica)
    try:
        return serve.run(deployment.bind(spec), name=name, route_prefix=None)
    except RuntimeError as error:
        serve.delete(name)
        raise refusal("no replica started", error) from None


def _at_once(limits: Limits) -> int:
    """Requests that a replica takes: those that run and wait there, and one more, which its own queue refuses."""
    return limits.queue + limits.batches * limits.batch_size + 1
