"""Time every configuration on the same requests, and summarise.

Each repetition starts every configuration afresh, running statistics included. Configurations take turns within a
repetition, so that a machine that slows down affects all of them. The paper reports means; medians are added because a
busy machine has outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean, median
from typing import Any

import torch

from covist.api.choose import check_setup
from covist.api.report import Report
from covist.api.setup import DEFAULT_METHOD, PLAIN, Setup
from covist.bench.workloads import Workload
from covist.budget import Ages, Budget, Count, Written, refuse_of_prompt
from covist.environment import machine, versions
from covist.errors import CovistError
from covist.families.registry import family_for, geometry_named
from covist.methods.grammar import VANILLA
from covist.request.answer import compressed
from covist.request.budgets import Reach, reach
from covist.request.inputs import Request
from covist.request.timing import Measurement, measure, measure_plain_decoder
from covist.request.tokens import VisualTokens, mean_content, uncompressed_flops, visual_tokens

MIB = 2**20


@dataclass
class Record:
    """All measurements of one configuration."""

    requests: list[Measurement] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)  # seconds of the plain decoder at the same length
    prompt_length: int = 0


def configurations(
    methods: Sequence[str], budgets: Sequence[Budget | Written | None], setup: Setup | None = None
) -> list[Setup]:
    """Vanilla first, as the reference of every ratio, then each method at each budget, with the settings of a setup."""
    own, others = setup or Setup(), [name for name in methods if name != VANILLA]
    made = [Setup(name, budget).over(own) for name, budget in product(others, budgets)]
    for one in made:
        check_setup(one)  # bad ones are refused before anything is timed
        if one.budget is not None:
            refuse_of_prompt(one.budget, "ages are those of turns, and each prompt here is one turn", Ages)
    return [PLAIN, *made]


def default_budgets(geometry: str | None) -> list[Budget | None]:
    """The paper's smallest budget for a geometry; elsewhere it is left open, for the model's default."""
    return [None if geometry is None else Count(min(geometry_named(geometry).budgets))]


class Bench:
    """A benchmark run; `results()` summarises what is finished, also after an interruption."""

    def __init__(
        self, workload: Workload, plan: Sequence[Setup], repetitions: int = 3, decoding: Mapping[str, Any] | None = None
    ):
        """`decoding`: further arguments of `generate`, such as those of a cache."""
        if repetitions < 1 or not workload.requests:
            raise CovistError("a benchmark needs at least one prompt and one repetition")
        self.workload, self.repetitions, self._decoding = workload, repetitions, decoding or {}
        self.plan = [setup.over(workload.loaded.defaults) for setup in plan]
        self.records = {setup: Record() for setup in self.plan}
        self._layers = len(family_for(workload.loaded.model).decoder.layers)
        self._tokens: list[VisualTokens] = [
            tokens for request in workload.requests for tokens in visual_tokens(workload.loaded, request)
        ]

    @property
    def steps(self) -> int:
        """Requests to run, warm-up included."""
        once = len(self.workload.warmup) + self.repetitions * len(self.workload.requests)
        return len(self.plan) * once

    def run(self, advance: Callable[[str], None] = lambda step: None) -> None:
        """Run everything; `advance(name)` is called after each request."""
        for setup in self.plan:
            self._run(setup, self.workload.warmup, Record(), advance)
        for _repetition in range(self.repetitions):
            for setup in self.plan:
                record = self.records[setup]
                self._run(setup, self.workload.requests, record, advance)
                record.plain.append(measure_plain_decoder(self.workload.loaded.model, round(self._mean_length(record))))

    def _run(self, setup: Setup, requests: Sequence[Request], record: Record, advance: Callable[[str], None]) -> None:
        torch.manual_seed(0)
        with compressed(self.workload.loaded, setup, instruction=self.workload.instruction) as handle:
            for request in requests:
                model, most = self.workload.loaded.model, self.workload.max_new_tokens
                record.requests.append(measure(model, request, most, **self._decoding))
                record.prompt_length = request.length
                if handle is not None and handle.report is not None:
                    record.reports.append(handle.report)
                advance(str(setup))

    def reaches(self) -> list[Reach]:
        """How many tokens each budget comes to on the images of the workload."""
        counts = sorted({(tokens.content, tokens.frames) for tokens in self._tokens})
        return [
            reach(setup.method or DEFAULT_METHOD, setup.budget, content, self._layers, frames)
            for setup in self.plan
            if setup.budget is not None and not setup.is_plain and setup.budget.says_count
            for content, frames in counts
        ]

    # -- summary -------------------------------------------------------------------------------------------------------

    def results(self) -> dict[str, Any]:
        """The whole benchmark as plain values."""
        workload = self.workload
        rows = [self._row(setup) for setup, record in self.records.items() if record.requests]
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
                "cache": self._decoding.get("cache_implementation", "dynamic"),
                "compiled": "compile_config" in self._decoding,
                "dtype": workload.loaded.dtype,
                "attention": workload.loaded.attention,
            },
            "results": rows,
            "machine": machine(),
            "versions": versions(),
        }

    def _row(self, setup: Setup) -> dict[str, Any]:
        record = self.records[setup]
        took = record.requests
        peaks = [item.peak_bytes for item in took if item.peak_bytes is not None]
        seconds = [report.seconds for report in record.reports]
        return {
            "method": setup.method,
            "budget": None if setup.is_plain or setup.budget is None else setup.budget.written,
            "mean_tokens": self._mean_tokens(record),
            "mean_cached_tokens": self._mean_cached_tokens(record),
            "markers": mean(tokens.markers for tokens in self._tokens),
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
        """Visual tokens of prefill per image, averaged over layers, images and requests."""
        return mean(report.mean_tokens for report in record.reports) if record.reports else mean_content(self._tokens)

    def _mean_cached_tokens(self, record: Record) -> float:
        """Visual tokens in the cache after prefill, averaged in the same way."""
        reports = record.reports
        return mean(report.mean_cached_tokens for report in reports) if reports else mean_content(self._tokens)

    def _mean_length(self, record: Record) -> float:
        """Sequence length averaged over layers, of the last request."""
        if not record.reports:
            return record.prompt_length
        report = record.reports[-1]
        return sum(report.text_tokens) + sum(image.mean_tokens + image.markers for image in report.images)

    def _flops(self, record: Record) -> float:
        if record.reports:
            return mean(report.flops for report in record.reports)
        return mean(uncompressed_flops(self.workload.loaded.model, request) for request in self.workload.requests)


def _milliseconds(seconds: Sequence[float]) -> dict[str, float] | None:
    return {"mean": 1000 * mean(seconds), "median": 1000 * median(seconds)} if seconds else None


def _ratios(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: before[name] / after[name] for name in before}
