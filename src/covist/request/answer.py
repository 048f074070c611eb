"""Run a request, with or without compression, and measure its cost."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from covist.api.choose import DEFAULT_METHOD, choose_budget
from covist.api.compress import compress
from covist.api.handle import Compression
from covist.api.report import Report
from covist.api.setup import Setup
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.methods.grammar import VANILLA, is_vanilla
from covist.request.inputs import Request
from covist.request.loading import LoadedModel
from covist.request.timing import Measurement, measure, median_of
from covist.request.tokens import mean_content, uncompressed_flops, visual_tokens
from covist.schedule import Calibration


@dataclass(frozen=True)
class Configuration:
    """A method at a budget; vanilla needs no budget.

    concentration: the frozen reference, for methods that have one
    constants: of CoViST, for methods that read them
    min_coverage: an image of which the tokens would cover less runs uncompressed
    calibration: for methods that use one
    """

    method: str
    budget: int | float | str | None = None
    concentration: float | None = field(default=None, compare=False)
    constants: CovistConfig | None = field(default=None, compare=False)
    min_coverage: float | None = field(default=None, compare=False)
    calibration: Calibration | None = field(default=None, compare=False)

    @classmethod
    def of(cls, setup: Setup) -> Configuration:
        """The configuration of a setup, with the defaults of `compress` for what it leaves open."""
        return cls(
            setup.method or DEFAULT_METHOD,
            choose_budget(None, setup),
            setup.concentration,
            setup.constants,
            setup.min_coverage,
            setup.calibration,
        )

    def __str__(self) -> str:
        return self.method if self.budget is None else f"{self.method} {self.budget}"

    @property
    def is_vanilla(self) -> bool:
        return is_vanilla(self.method)


@dataclass(frozen=True)
class Answer:
    """The answer of a model and its cost."""

    method: str
    text: str
    mean_tokens: float  # visual tokens of prefill per image, averaged over layers and images
    flops: float  # decoder prefill, Eq. 19
    measurement: Measurement
    report: Report | None = None

    @property
    def mean_cached_tokens(self) -> float:
        """Visual tokens in the cache after prefill, averaged in the same way."""
        return self.mean_tokens if self.report is None else self.report.mean_cached_tokens

    def to_dict(self) -> dict[str, Any]:
        took = self.measurement
        return {
            "method": self.method,
            "answer": self.text,
            "mean_tokens": self.mean_tokens,
            "mean_cached_tokens": self.mean_cached_tokens,
            "kv_bytes": took.kv_bytes,
            "flops": self.flops,
            "seconds": {"ttft": took.ttft, "prefill": took.prefill, "generation": took.generation},
            "requests": took.requests,
            "new_tokens": took.new_tokens,
            "report": None if self.report is None else self.report.to_dict(),
        }


def compressed(
    loaded: LoadedModel,
    configuration: Configuration,
    *,
    instruction: str | None = None,
    concentration: float | None = None,
) -> AbstractContextManager[Compression | None]:
    """Compress the model within a `with` block; vanilla leaves it as it is.

    concentration: the frozen reference, if the configuration has none
    """
    if configuration.is_vanilla or configuration.budget is None:
        return nullcontext()
    frozen = concentration if configuration.concentration is None else configuration.concentration
    return compress(
        loaded.model,
        loaded.processor,
        config=Setup(
            configuration.method,
            configuration.budget,
            frozen,
            configuration.constants,
            calibration=configuration.calibration,
        ),
        min_coverage=configuration.min_coverage,
        clip=loaded.clip,
        instruction=instruction,
    )


def ask(
    loaded: LoadedModel,
    request: Request,
    configuration: Configuration,
    max_new_tokens: int = 128,
    *,
    warmup: int = 0,
    repetitions: int = 1,
) -> Answer:
    """Answer a request; its times are medians over `repetitions`, after `warmup` untimed requests."""
    with compressed(loaded, configuration) as handle:
        for _ in range(warmup):
            measure(loaded.model, request, max_new_tokens)
        took = median_of([measure(loaded.model, request, max_new_tokens) for _ in range(repetitions)])
        report = None if handle is None else handle.report
    text = loaded.processor.batch_decode(took.output, skip_special_tokens=True)[0].strip()
    if handle is None:
        tokens = mean_content(visual_tokens(loaded, request))
        return Answer(VANILLA, text, tokens, uncompressed_flops(loaded.model, request), took)
    if report is None:
        raise CovistError("the model saw no image in this prompt")
    return Answer(configuration.method, text, report.mean_tokens, report.flops, took, report)


def compare(
    loaded: LoadedModel, request: Request, configuration: Configuration, max_new_tokens: int = 128, repetitions: int = 3
) -> tuple[Answer, Answer]:
    """The uncompressed and the compressed answer, with medians of a few requests after a warm-up."""
    timing: dict[str, int] = {"warmup": 1, "repetitions": repetitions}
    plain = ask(loaded, request, Configuration(VANILLA), max_new_tokens, **timing)
    return plain, ask(loaded, request, configuration, max_new_tokens, **timing)
