"""Counters for Prometheus, in a separate registry for each application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from covist.serve.answers import ChatAnswer

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)


class Metrics:
    """What `/metrics` shows."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter("covist_requests", "Requests by path and status.", ["path", "status"], **own)
        self._refusals = Counter("covist_refusals", "Refused requests, by reason.", ["reason"], **own)
        self._seconds = Histogram(
            "covist_request_seconds", "From the first byte to the last.", ["path"], buckets=_SECONDS, **own
        )
        self._first_token = Histogram(
            "covist_first_token_seconds", "From arrival to the first token.", buckets=_SECONDS, **own
        )
        self._queue_seconds = Histogram(
            "covist_queue_seconds", "From arrival to the start of the batch.", buckets=_SECONDS, **own
        )
        self._prompt_tokens = Counter("covist_prompt_tokens", "Prompt tokens, before compression.", **own)
        self._output_tokens = Counter("covist_output_tokens", "Generated tokens.", **own)
        self._visual = Counter("covist_visual_tokens", "Visual tokens, before and after compression.", ["when"], **own)
        self._saved = Counter("covist_visual_tokens_saved", "Visual tokens that compression removed.", **own)
        self._cache = Counter("covist_cache_bytes", "Cache of prompts, before and after compression.", ["when"], **own)
        self._coverage = Histogram(
            "covist_coverage", "Share of an image's evidence that the budget covers.", buckets=_SHARES, **own
        )
        self._whole = Counter("covist_whole_images", "Images left uncompressed by min_coverage.", **own)

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read at every scrape."""
        Gauge(name, help_text, registry=self._registry).set_function(read)

    def sizes(self, name: str, help_text: str) -> Callable[[int], None]:
        """Add a histogram of counts; returns the function that records one."""
        return Histogram(name, help_text, buckets=_SIZES, registry=self._registry).observe

    def gather(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics of other processes, read at every scrape."""
        self._registry.register(_Gathered(read))

    def families(self, names: Collection[str]) -> list[Metric]:
        """The current values of some metrics, for another process to show."""
        return [family for family in self._registry.collect() if family.name in names]

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def answered(self, answer: ChatAnswer) -> None:
        """Count a complete answer."""
        end, cost = answer.first_end, answer.first_end.cost
        self._first_token.observe(end.first_token)
        self._queue_seconds.observe(end.waited)
        self._prompt_tokens.inc(answer.usage["prompt_tokens"])
        self._output_tokens.inc(answer.usage["completion_tokens"])
        self._visual.labels("before").inc(cost.visual_tokens)
        self._visual.labels("after").inc(cost.visual_tokens_kept)
        self._saved.inc(max(0.0, cost.visual_tokens - cost.visual_tokens_kept))
        self._cache.labels("before").inc(cost.cache_bytes_uncompressed)
        self._cache.labels("after").inc(cost.cache_bytes)
        for certificate in filter(None, cost.certificates):
            missed = certificate["missed"]  # what compression would have covered
            self._coverage.observe(certificate["coverage"] if missed is None else missed)
            self._whole.inc(missed is not None)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


class _Gathered:
    """A collector, as the registry requires."""

    def __init__(self, read: Callable[[], Iterable[Metric]]):
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield from self._read()
