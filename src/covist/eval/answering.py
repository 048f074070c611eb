"""Answer a suite run by run, and define what the answers depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from statistics import mean
from time import perf_counter
from typing import Any

import torch

from covist import __version__
from covist.api.handle import Compression
from covist.api.origin import check_origin
from covist.api.setup import Setup
from covist.budget import Budget
from covist.config import CovistConfig
from covist.eval.records import ItemAnswers, Records, Run
from covist.eval.subject import Subject
from covist.eval.suite import Item, Suite
from covist.methods.create import foreign_code
from covist.report.stages import ImageReport
from covist.request.answer import compressed
from covist.request.budgets import is_capped
from covist.schedule import Calibration

Progress = Callable[[int, int, str], None]
"""Called with the number of finished images, of all images (both over all runs), and the name of the current run."""


def answers_identity(
    suite: Suite, subject: Subject, max_new_tokens: int | None, setup: Setup, seed: int
) -> dict[str, Any]:
    """What must be the same for all answers in a directory."""
    check_origin(setup, subject.model.config)
    return {
        "covist": __version__,
        "suite": suite.name,
        "suite_version": suite.fingerprint(),
        **subject.identity,
        "max_new_tokens": max_new_tokens or "right answer",
        "constants": "published" if setup.constants is None else setup.constants.to_dict(),
        "seed": seed,
        "concentration": setup.concentration,
        "min_coverage": setup.min_coverage,
        "max_visual_tokens": setup.max_visual_tokens,
        "calibration": None if setup.calibration is None else setup.calibration.to_dict(),
    }


def setup_from(settings: Mapping[str, Any]) -> Setup:
    """The setup that all answers of a directory share, from what `answers_identity` wrote."""
    constants, calibration = settings.get("constants"), settings.get("calibration")
    return Setup(
        concentration=settings.get("concentration"),
        constants=CovistConfig.from_dict(constants) if isinstance(constants, dict) else None,
        min_coverage=settings.get("min_coverage"),
        max_visual_tokens=settings.get("max_visual_tokens"),
        calibration=None if calibration is None else Calibration.from_dict(calibration),
    )


class SuiteAnswerer:
    """Answers the items that have no answers in the records yet."""

    def __init__(self, subject: Subject, suite: Suite, items: Sequence[Item], records: Records, seed: int):
        self.subject, self.suite, self.items, self.records, self.seed = subject, suite, items, records, seed

    def on(self, items: Sequence[Item]) -> SuiteAnswerer:
        """The same for other items of the suite."""
        return SuiteAnswerer(self.subject, self.suite, items, self.records, self.seed)

    def is_finished(self, run: Run) -> bool:
        return all(item.number in self.records.of(run) for item in self.items)

    def answer(self, runs: Sequence[Run], progress: Progress | None = None) -> None:
        codes = {run: foreign_code(run.method) for run in runs}  # the files are read once
        for run, code in codes.items():
            self.records.require_same_code(run, code)
        open_items = {run: [item for item in self.items if item.number not in self.records.of(run)] for run in runs}
        total = len(runs) * len(self.items)
        done = total - sum(map(len, open_items.values()))
        for run, items in open_items.items():
            with self._compressed(run) if items else nullcontext() as handle:
                for item in items:
                    if progress:
                        progress(done, total, str(run))
                    self.records.add(run, self._answer(item, run, handle, codes[run]))
                    done += 1
        if progress:
            progress(done, total, "finished")

    def _compressed(self, run: Run) -> AbstractContextManager[Compression | None]:
        return compressed(self.subject.loaded, self.setup_of(run))

    def setup_of(self, run: Run) -> Setup:
        """Everything that the answers of a run depend on, the concentration reference included."""
        shared = setup_from(self.records.settings)
        return replace(shared, method=run.method, budget=run.budget).resolved(self.concentration)

    def concentration(self) -> float:
        """CoViST's frozen reference, measured once."""
        if self.records.settings["concentration"] is None:
            self.records.store_setting("concentration", self.subject.concentration(self.suite))
        return self.records.settings["concentration"]

    def _answer(self, item: Item, run: Run, handle: Compression | None, code: str | None) -> ItemAnswers:
        # Seeded per image, so that an interrupted run draws the same numbers as an uninterrupted one.
        torch.manual_seed(self.seed * self.suite.size + item.number)
        ready = self.subject.requests(item)
        started = perf_counter()
        said = self.subject.answer(item, ready)
        seconds = perf_counter() - started
        report = None if handle is None else handle.report
        tokens = self.subject.tokens(item) if report is None else report.mean_tokens
        cached = tokens if report is None else report.mean_cached_tokens
        target = tokens if report is None else mean(_target(run.budget, image) for image in report.visuals)
        return ItemAnswers(
            item.number,
            said.texts,
            round(seconds, 4),
            tokens,
            self.records.call,
            cached=None if cached == tokens else cached,
            target=None if target == run.budget.written else target,
            capped=report is not None and any(is_capped(run.budget, image) for image in report.visuals),
            written=said.tokens,
            losses=said.losses,
            code=code,
        )


def _target(budget: Budget, image: ImageReport) -> int:
    """The tokens that a budget allows an image or a video; one that looks at more than their size has reported them."""
    return budget.count_for(image.tokens, image.frames) if budget.says_count else image.budget
