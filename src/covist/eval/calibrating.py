"""`calibrate`: measure on images what a method must know about a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from covist.api.compress import compress
from covist.api.origin import tuned_on
from covist.api.setup import Setup
from covist.budget import Budget, Written, refuse_of_prompt
from covist.environment import versions
from covist.errors import CovistError
from covist.eval.answering import Progress
from covist.eval.runner import check_runs, method_names, read_budgets
from covist.eval.subject import Subject
from covist.eval.suite import Item, Suite, load_suite
from covist.eval.tuning import LADDER
from covist.methods.grammar import parse_name
from covist.methods.published.fitprune import AttentionProbe, FitPrune
from covist.request.decoding import generate
from covist.schedule import Calibration

IMAGES = 64
"""The default number of images."""
_DIGITS = 6


@dataclass(frozen=True)
class Fitted:
    """The result for one budget: the change of attention that it needs, and the tokens that each layer sees.

    kept: share of an image's tokens in each layer, averaged over images
    """

    budget: Budget
    alpha: float
    kept: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.kept)


@dataclass(frozen=True)
class Calibrated:
    """The result of `calibrate`; save its `setup` as `covist.json`.

    examples: the number of measured pairs of an image and a question; an item has one or several
    fitted: for each budget the tokens that each layer sees
    unreachable: budgets that were not fitted, because the first layer alone exceeds them
    """

    suite: str
    unit: str
    items: int
    examples: int
    fitted: list[Fitted]
    unreachable: list[Budget]
    setup: Setup

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {"budget": one.budget.written, "alpha": one.alpha, "mean_share": one.mean, "kept": list(one.kept)}
            for one in self.fitted
        ]
        return {
            "suite": self.suite,
            "unit": self.unit,
            "items": self.items,
            "examples": self.examples,
            "fitted": rows,
            "unreachable": [one.written for one in self.unreachable],
            "setup": self.setup.to_dict(),
        }


def calibrate(
    method: str = "fitprune",
    *,
    suite: str | Suite = "scenes",
    budgets: str | Iterable[Budget | Written] | None = None,
    limit: int = IMAGES,
    model: Any = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Measure how many tokens each decoder layer can do without, for FitPrune, which takes its counts from this.

    method: the name "fitprune", with settings if needed
    budgets: the budgets to fit, as in `evaluate`; by default nine between a half and a thirty-sixth of the tokens.
        Budgets between two of them are interpolated.
    suite, model: as in `evaluate`; right answers are not needed
    limit: use only so many images, the first ones

    >>> from covist.eval import Item, Question, Suite
    >>> image, question, answer = covist.tiny.demo()
    >>> found = covist.eval.calibrate(suite=Suite.of("one", [Item.of(image, Question(question))]), budgets="128")
    >>> str(found.setup), len(found.setup.calibration.kept[0])
    ('fitprune 128', 8)
    """
    name, wanted = check_calibration(method, budgets)
    asked = load_suite(suite)
    subject, items = Subject.resolve(asked.model if model is None else model), asked.items(limit)
    probe = _looked_at(subject, items, progress)
    fitted = _fitted(probe, wanted)
    if not fitted:
        raise CovistError("no budget can be reached: the first layer alone, which sees all tokens, exceeds it")
    calibration = Calibration(tuple(one.kept for one in fitted))
    single = wanted[0] if len(wanted) == 1 else None
    origin, loading = _origin(asked, subject, len(items), fitted), subject.loaded.loading.lasting
    setup = Setup(name, single, origin=origin, calibration=calibration, loading=loading)
    unreachable = [budget for budget in wanted if budget not in {one.budget for one in fitted}]
    return Calibrated(asked.name, asked.unit, len(items), len(probe.sizes), fitted, unreachable, setup)


def check_calibration(method: str, budgets: str | Iterable[Budget | Written] | None = None) -> tuple[str, list[Budget]]:
    """The method and the budgets; refuses bad ones before anything is loaded."""
    name, *others = method_names(method)
    if others or parse_name(name).base != FitPrune.name:
        raise CovistError(f"{method} has nothing to calibrate; choose {FitPrune.name}")
    wanted = read_budgets(LADDER if budgets is None else budgets)
    if not wanted:
        raise CovistError("no budget given; name at least one, for example 64")
    check_runs([name], wanted)
    for budget in wanted:
        refuse_of_prompt(budget, "a calibration is fitted to single images")
    return name, wanted


def _origin(suite: Suite, subject: Subject, items: int, fitted: list[Fitted]) -> dict[str, Any]:
    """Where a calibration comes from, for the reader of the file."""
    return {
        "made_by": "covist calibrate",
        "suite": suite.name,
        "suite_version": suite.fingerprint(),
        "items": items,
        "alpha": {str(one.budget): one.alpha for one in fitted},
        **subject.identity,
        **tuned_on(subject.loaded.name, subject.model.config),
        "versions": versions(),
    }


def _fitted(probe: AttentionProbe, budgets: list[Budget]) -> list[Fitted]:
    """Fit every budget that leaves tokens for the layers after the first, which sees all of them."""
    attended, found = probe.attended, []
    for budget in budgets:
        share = fmean(budget.count_for(*size) / size[0] for size in probe.sizes)
        if share * attended.layers > 1:
            alpha, kept = attended.fit(share)
            found.append(Fitted(budget, round(alpha, _DIGITS), tuple(round(one, _DIGITS) for one in kept)))
    return found


def _looked_at(subject: Subject, items: list[Item], progress: Progress | None) -> AttentionProbe:
    """Run every question about every item, up to the first token of the answer."""
    probe = AttentionProbe()
    loaded = subject.loaded
    with compress(loaded.model, loaded.processor, method=probe):
        for number, item in enumerate(items):
            if progress:
                progress(number, len(items), "measuring")
            for request in subject.requests(item):
                generate(loaded.model, request.inputs(loaded.model), 1)
    if not probe.sizes:
        raise CovistError("the model saw no image whose attention could be measured; give images and questions")
    return probe
