"""`evaluate_photos`: methods x budgets on photographs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from covist.api.setup import Setup
from covist.budget import Budget, Count, Written
from covist.config import CovistConfig
from covist.eval.answering import Progress, SuiteAnswerer, answers_identity
from covist.eval.photos.gains import BLIND
from covist.eval.photos.question_results import QuestionResults
from covist.eval.photos.results import PhotoResults
from covist.eval.photos.subject import CaptionSubject, PhotoSubject
from covist.eval.photos.suite import CAPTIONS
from covist.eval.photos.tower import remembered_tower
from covist.eval.records import Records, Run
from covist.eval.runner import answer_and_summarise, method_names, planned_runs, read_budgets
from covist.eval.suite import HALVES, Suite
from covist.methods.grammar import VANILLA


class PhotoAnswering(SuiteAnswerer):
    """Answers with a further run, the model without an image, and most of the vision tower computed once per image."""

    subject: PhotoSubject

    def answer(self, runs: Sequence[Run], progress: Progress | None = None) -> None:
        with remembered_tower(self.subject.model):
            super().answer(runs, progress)

    def _compressed(self, run: Run) -> AbstractContextManager[Any]:
        return self.subject.blinded(self.suite) if run.method == BLIND else super()._compressed(run)


class CaptionAnswering(PhotoAnswering):
    """The first run is that of the uncompressed model, whose captions the others check."""

    subject: CaptionSubject

    def answer(self, runs: Sequence[Run], progress: Progress | None = None) -> None:
        self._uncompressed = self.records.of(runs[0])
        super().answer(runs, progress)

    def _compressed(self, run: Run) -> AbstractContextManager[Any]:
        if run.method != VANILLA:
            answers = self._uncompressed.items()
            self.subject.written = {number: one.written[0] for number, one in answers if one.written}
        return super()._compressed(run)


def evaluate_photos(
    methods: str | Iterable[str],
    budgets: str | Iterable[Budget | Written],
    *,
    suite: Suite,
    model: Any,
    half: str | None = None,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    config: CovistConfig | Setup | str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> PhotoResults | QuestionResults:
    """How much of what the model sees in photographs does a method keep, by captions that people wrote or by questions?

    methods, budgets, limit, config, out, seed, progress: as in `evaluate`
    suite: of `photo_suite`; docs/photos-protocol.md describes splits and measures
    model: a name, a `LoadedModel`, or a tuple (model, processor, clip)
    half: "even" for the development images, the default with captions, or "odd" for the test images; without it, all
        images of a file of questions
    max_new_tokens: of captions that the model writes itself, 24 by default; of answers, the length of the right one

    Paired differences are those to the first method. The vision tower is computed once per image, so times of the
    results are no times of requests.
    """
    names, setup, longest = method_names(methods), Setup.of(config), max_new_tokens or suite.max_new_tokens
    items = suite.items(limit, half or (HALVES[0] if CAPTIONS in suite.families else None))
    subject_of, answering_of, results_of = _kind(suite)
    subject = subject_of.resolve(model, longest)
    vanilla, *others = planned_runs(names, read_budgets(budgets), round(subject.tokens(items[0])), suite.one_size)
    runs = [vanilla, Run(BLIND, Count(0)), *others]
    with Records(out, answers_identity(suite, subject, longest, setup, seed)) as records:
        answering = answering_of(subject, suite, items, records, seed)
        build = partial(results_of.build, suite, items, records=records, seed=seed)
        return answer_and_summarise(answering, runs, runs[:2], build, out, progress)


def _kind(suite: Suite) -> tuple[type[PhotoSubject], type[PhotoAnswering], Any]:
    """Who answers a suite, how its runs are made, and what becomes of the answers."""
    if CAPTIONS in suite.families:
        return CaptionSubject, CaptionAnswering, PhotoResults
    return PhotoSubject, PhotoAnswering, QuestionResults
