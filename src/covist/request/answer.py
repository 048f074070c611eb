"""Run a request, with or without compression, and measure its cost."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from covist.api.compress import compress
from covist.api.handle import Compression
from covist.api.report import Report
from covist.api.setup import DEFAULT_METHOD, PLAIN, Setup
from covist.errors import CovistError
from covist.methods.grammar import VANILLA
from covist.request.inputs import Request
from covist.request.loading import LoadedModel
from covist.request.timing import Measurement, measure, median_of
from covist.request.tokens import mean_content, uncompressed_flops, visual_tokens


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
    loaded: LoadedModel, setup: Setup, *, instruction: str | None = None
) -> AbstractContextManager[Compression | None]:
    """Compress the model within a `with` block; a plain setup leaves it as it is."""
    if setup.is_plain:
        return nullcontext()
    return compress(loaded.model, loaded.processor, config=setup, clip=loaded.clip, instruction=instruction)


def ask(
    loaded: LoadedModel,
    request: Request,
    setup: Setup,
    max_new_tokens: int = 128,
    *,
    warmup: int = 0,
    repetitions: int = 1,
) -> Answer:
    """Answer a request; its times are medians over `repetitions`, after `warmup` untimed requests."""
    with compressed(loaded, setup) as handle:
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
    return Answer(setup.method or DEFAULT_METHOD, text, report.mean_tokens, report.flops, took, report)


def compare(
    loaded: LoadedModel, request: Request, setup: Setup, max_new_tokens: int = 128, repetitions: int = 3
) -> tuple[Answer, Answer]:
    """The uncompressed and the compressed answer, with medians of a few requests after a warm-up."""
    timing: dict[str, int] = {"warmup": 1, "repetitions": repetitions}
    plain = ask(loaded, request, PLAIN, max_new_tokens, **timing)
    return plain, ask(loaded, request, setup, max_new_tokens, **timing)
