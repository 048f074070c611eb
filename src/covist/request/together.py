"""Conversations answered in one batch: one answer each, with its visual tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from operator import add
from typing import Any

from covist.api.handle import Compression
from covist.api.report import Report
from covist.budget import Budget
from covist.request.batches import collate, end_tokens, pad_token, until_end
from covist.request.budgets import is_capped
from covist.request.conversations import Posed
from covist.request.decoding import generate
from covist.request.loading import LoadedModel
from covist.request.tokens import visual_tokens


@dataclass(frozen=True)
class Shown:
    """The visual tokens of all images and videos of some prompts."""

    views: int = 0  # images and video frames: the units of a budget
    tokens: float = 0  # before compression
    kept: float = 0  # in the cache after prefill, averaged over layers: what a budget counts
    prefill: float = 0  # during prefill, averaged over layers
    capped: int = 0  # images and videos on which `auto` reached its maximum without covering enough

    def __add__(self, other: Shown) -> Shown:
        return Shown(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class BatchAnswer:
    """One answer, and its cost."""

    text: str
    tokens: tuple[int, ...]  # end token included
    is_complete: bool  # ended by the model, not by the length limit
    shown: Shown


class Together:
    """A loaded model that answers batches; with a frozen reference, no answer depends on its neighbours.

    handle: its compression, if it has any
    """

    def __init__(self, loaded: LoadedModel, handle: Compression | None):
        self.loaded, self._handle = loaded, handle
        self._padding = pad_token(loaded.processor.tokenizer)
        self._ends = end_tokens(loaded.model)
        self._counts: dict[Any, Shown] = {}  # of uncompressed prompts, by the sizes of their images

    def answer(self, posed: Sequence[Posed], **options: Any) -> list[BatchAnswer]:
        """Answers to a batch; `options` are those of `request.decoding.generate`."""
        inputs = collate([one.request for one in posed], self._padding)
        with nullcontext() if self._handle is None else self._handle.using() as run:
            answers = generate(self.loaded.model, inputs, pad_token_id=self._padding, **options)  # [batch, new tokens]
        texts = self.loaded.processor.batch_decode(answers, skip_special_tokens=True)
        shown = self._shown(posed, None if run is None else run.report, int(options.get("num_beams") or 1))
        return [self._said(*one) for one in zip(texts, answers.tolist(), shown, strict=True)]

    def _said(self, text: str, row: list[int], shown: Shown) -> BatchAnswer:
        tokens = until_end(row, self._ends)
        return BatchAnswer(text, tuple(tokens), bool(tokens) and tokens[-1] in self._ends, shown)

    def _shown(self, posed: Sequence[Posed], report: Report | None, beams: int) -> list[Shown]:
        if self._handle is None:
            return [self._counted(one) for one in posed]
        budget = self._handle.settings.budget
        return [_compressed(report, row * beams, budget) for row in range(len(posed))]

    def _counted(self, posed: Posed) -> Shown:
        """Uncompressed tokens; the vision tower runs once for each combination of sizes."""
        if not posed.shapes:
            return Shown()
        if posed.shapes not in self._counts:
            items = visual_tokens(self.loaded, posed.request)
            tokens = sum(item.content for item in items)
            self._counts[posed.shapes] = Shown(sum(item.frames for item in items), tokens, tokens, tokens)
        return self._counts[posed.shapes]


def _compressed(report: Report | None, row: int, budget: Budget) -> Shown:
    """The tokens of one row in the report of a batch; every beam of a prompt is a row."""
    images = [] if report is None else [image for image in report.visuals if image.sample == row]
    return Shown(
        sum(image.frames for image in images),
        sum(image.tokens for image in images),
        sum(image.mean_cached_tokens for image in images),
        sum(image.mean_tokens for image in images),
        sum(is_capped(budget, image) for image in images),
    )
