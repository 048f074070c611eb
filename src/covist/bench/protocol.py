"""Time every configuration on the same requests and sum up.

Each repetition starts every configuration afresh (running statistics included), and configurations take turns within
a repetition, so that a machine that slows down slows all of them. Means are the paper's figures; medians stand beside
them because a busy machine has outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

import torch

from covist.api import compress
from covist.bench.workloads import Request, Workload
from covist.engine.compression import Compression
from covist.engine.decoder import Decoder
from covist.engine.report import Report
from covist.environment import machine, versions
from covist.errors import CovistError
from covist.eval.variants import VANILLA, build_method
from covist.families.registry import family_for
from covist.plan import checked_budget, geometry_named
from covist.request.timing import Measurement, measure, measure_plain_decoder
from covist.schedule import decoder_flops

MIB = 2**20


@dataclass(frozen=True)
class Configuration:
    """A method at a budget; vanilla has none."""

    method: str
    budget: int | str | None = None

    def __str__(self) -> str:
        return self.method if self.budget is None else f"{self.method} {self.budget}"


@dataclass
class Record:
    """Everything that was measured of one configuration."""

    requests: list[Measurement] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)  # seconds of the plain decoder at the same length
    prompt_length: int = 0


def configurations(methods: Sequence[str], budgets: Sequence[int | str]) -> list[Configuration]:
    """Vanilla first (every ratio refers to it), then each method at each budget."""
    others = [name for name in methods if name != VANILLA]
    for name in others:
        build_method(name)  # an unknown name is refused before anything is timed
    return [Configuration(VANILLA), *(Configuration(name, budget) for name in others for budget in budgets)]


def default_budgets(geometry: str | None) -> list[int | str]:
    """The paper's smallest budget for a geometry; 64 elsewhere."""
    return [64] if geometry is None else [min(geometry_named(geometry).budgets)]


class Bench:
    """A benchmark run; `results()` sums up whatever is finished, also after an interruption."""

    def __init__(self, workload: Workload, plan: Sequence[Configuration], repetitions: int = 3):
        if repetitions < 1 or not workload.requests:
            raise CovistError("a benchmark needs at least one prompt and one repetition")
        self.workload, self.plan, self.repetitions = workload, list(plan), repetitions
        self.records = {configuration: Record() for configuration in plan}
        self._family = family_for(workload.model)
        self._decoder = Decoder(self._family.decoder)
        tokens = min(map(self._image_tokens, workload.requests))
        for configuration in plan:
            if configuration.budget is not None:
                checked_budget(configuration.budget, tokens)

    @property
    def steps(self) -> int:
        """Requests to run, warm-up included."""
        once = len(self.workload.warmup) + self.repetitions * len(self.workload.requests)
        return len(self.plan) * once

    def run(self, advance: Callable[[str], None] = lambda step: None) -> None:
        """Run everything; `advance(name)` is called after each request."""
        for configuration in self.plan:
            self._run(configuration, self.workload.warmup, Record(), advance)
        for _repetition in range(self.repetitions):
            for configuration in self.plan:
                record = self.records[configuration]
                self._run(configuration, self.workload.requests, record, advance)
                record.plain.append(measure_plain_decoder(self.workload.model, round(self._mean_length(record))))

    def _run(
        self, configuration: Configuration, requests: Sequence[Request], record: Record, advance: Callable[[str], None]
    ) -> None:
        torch.manual_seed(0)
        with self._compression(configuration) as handle:
            for request in requests:
                record.requests.append(measure(self.workload.model, request, self.workload.max_new_tokens))
                record.prompt_length = request["input_ids"].shape[1]
                if handle is not None and handle.report is not None:
                    record.reports.append(handle.report)
                advance(str(configuration))

    def _compression(self, configuration: Configuration) -> AbstractContextManager[Compression | None]:
        workload = self.workload
        method = build_method(configuration.method)
        if method is None or configuration.budget is None:
            return nullcontext()
        return compress(
            workload.model,
            workload.processor,
            method=method,
            budget=configuration.budget,
            clip=workload.clip,
            instruction=workload.instruction,
        )

    # -- summing up ----------------------------------------------------------------------------------------------------

    def results(self) -> dict[str, Any]:
        """The whole benchmark as plain values."""
        workload = self.workload
        rows = [self._row(configuration) for configuration, record in self.records.items() if record.requests]
        reference = next((row for row in rows if row["method"] == VANILLA), None)
        for row in rows:
            row["speedup"] = None if reference is None else _ratios(reference["generation_ms"], row["generation_ms"])
        return {
            "workload": workload.name,
            "protocol": {
                "prompts": len(workload.requests),
                "warmup": len(workload.warmup),
                "repetitions": self.repetitions,
                "max_new_tokens": workload.max_new_tokens,
                "dtype": str(next(workload.model.parameters()).dtype).removeprefix("torch."),
                "attention": self._decoder.check_backend(),
            },
            "results": rows,
            "machine": machine(),
            "versions": versions(),
        }

    def _row(self, configuration: Configuration) -> dict[str, Any]:
        record = self.records[configuration]
        took = record.requests
        peaks = [item.peak_bytes for item in took if item.peak_bytes is not None]
        seconds = [report.seconds for report in record.reports]
        return {
            **asdict(configuration),
            "mean_tokens": self._mean_tokens(record),
            "requests": len(took),
            "ttft_ms": _milliseconds([item.ttft for item in took]),
            "prefill_ms": _milliseconds([item.prefill for item in took]),
            "generation_ms": _milliseconds([item.generation for item in took]),
            "tokens_per_second": sum(item.new_tokens for item in took) / sum(item.generation for item in took),
            "plain_decoder_ms": _milliseconds(record.plain),
            "prefill_over_plain": median(item.prefill for item in took) / median(record.plain)
            if record.plain
            else None,
            "selection_ms": _milliseconds([item["selection"] for item in seconds]),
            "compression_ms": _milliseconds([sum(item.values()) for item in seconds]),
            "peak_mib": max(peaks) / MIB if peaks else None,
            "kv_mib": mean(item.kv_bytes for item in took) / MIB,
            "flops": self._flops(record),
        }

    def _mean_tokens(self, record: Record) -> float:
        """Visual tokens, markers included, averaged over layers and requests."""
        if record.reports:
            images = [image for report in record.reports for image in report.images]
            return mean(image.mean_tokens + image.markers for image in images)
        return mean(map(self._image_tokens, self.workload.requests))

    def _image_tokens(self, request: Request) -> int:
        return int(self._family.image_mask(request["input_ids"], None).sum())

    def _mean_length(self, record: Record) -> float:
        """Sequence length averaged over layers, of the last request."""
        if not record.reports:
            return record.prompt_length
        report = record.reports[-1]
        return sum(report.text_tokens) + sum(image.mean_tokens + image.markers for image in report.images)

    def _flops(self, record: Record) -> float:
        if record.reports:
            return mean(report.flops for report in record.reports)
        decoder = self._decoder
        lengths = [request["input_ids"].shape[1] for request in self.workload.requests]
        return mean(
            decoder_flops([length] * decoder.layers, decoder.hidden, decoder.intermediate) for length in lengths
        )


def _milliseconds(seconds: Sequence[float]) -> dict[str, float] | None:
    return {"mean": 1000 * mean(seconds), "median": 1000 * median(seconds)} if seconds else None


def _ratios(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: before[name] / after[name] for name in before}
