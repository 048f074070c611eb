"""The results of an evaluation: scores with intervals, as JSON, as Markdown and as a plot."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from covist.budget import Budget, Written
from covist.environment import versions
from covist.errors import CovistError
from covist.eval.comparing import FEWEST, holm, sign_flip
from covist.eval.questions import AGREEMENT
from covist.eval.records import ItemAnswers, Records, Run
from covist.eval.statistics import (
    LEVEL,
    Estimate,
    Interval,
    Tally,
    accuracy,
    contributions,
    difference,
    family_scores,
    retention,
)
from covist.eval.suite import Item, Suite
from covist.eval.tables import markdown, plain_text
from covist.eval.tally import answer_agreement, tally
from covist.extras import lack_of
from covist.methods.grammar import VANILLA
from covist.outputs import write_json, write_text, writing
from covist.request.budgets import Reach, capped_note, distinct_notes, reach_of
from covist.units import counted

_DIGITS = 2
PLOT = "retention.png"
PREFERRED_REFERENCE = "covist-fixed"


@dataclass(frozen=True)
class Score:
    """The score of one method at one budget; accuracy, families and retention in percent, with 95% intervals.

    mean_tokens: visual tokens of prefill, averaged over layers and images
    mean_cached_tokens: visual tokens in the cache after prefill, averaged in the same way
    counted_tokens: which of these two the budget counts: mostly the cached ones
    accuracy: the mean of the families
    retention: the mean over families of score / score of the uncompressed model
    families: the score of each family of questions
    same_answers: the share of questions with exactly the uncompressed model's answer
    target: the tokens that the budget came to, if it is a share, or a count per frame of a video
    seconds_per_image: to answer all questions about an image
    reached: whether the method keeps to the budget; if not, the score is not ranked
    nominal: whether it uses its published counts, whatever their mean
    times_mixed: whether its times and vanilla's come from several calls: do not compare them
    capped: the number of images on which an adaptive budget reached its maximum before it covered enough
    """

    method: str
    budget: Budget
    mean_tokens: float
    mean_cached_tokens: float
    counted_tokens: float
    accuracy: float
    accuracy_interval: Interval
    retention: float
    retention_interval: Interval
    families: dict[str, float]
    same_answers: float
    target: float
    seconds_per_image: float
    reached: bool
    nominal: bool
    times_mixed: bool
    capped: int

    @property
    def standing(self) -> str:
        """Why the method uses more tokens than the budget, if it does: "nominal" or "not reachable"."""
        return "" if self.reached else "nominal" if self.nominal else "not reachable"


@dataclass(frozen=True)
class Difference:
    """Retention of a method minus that of another at the same budget, on the same images.

    interval: 95% interval of the difference
    p: p-value of no difference, by exchanging the two methods on images at random; nan if there is no difference
    p_holm: the same after Holm's correction for all comparisons in the table
    images: the number of images compared
    """

    method: str
    against: str
    budget: Budget
    retention: float
    interval: Interval
    p: float
    p_holm: float
    images: int

    @property
    def is_clear(self) -> bool:
        """Whether p is at most 5 %; without a true difference, one in twenty is clear by chance.

        Never with fewer than 30 images.
        """
        return self.images >= FEWEST and self.p <= 1 - LEVEL

    @property
    def is_clear_among_all(self) -> bool:
        """Whether it is still clear after Holm's correction: the chance of any false one in the table is 5 %."""
        return self.images >= FEWEST and self.p_holm <= 1 - LEVEL


@dataclass(frozen=True)
class RunCost:
    """Means over the images of a run, and the calls of `evaluate` that measured them."""

    seconds: float
    tokens: float
    cached_tokens: float
    target: float  # tokens that the budget came to
    capped: int
    calls: frozenset[str]

    @classmethod
    def of(cls, run: Run, answered: list[ItemAnswers]) -> RunCost:
        return cls(
            mean(one.seconds for one in answered),
            mean(one.tokens for one in answered),
            mean(one.cached_tokens for one in answered),
            mean(float(run.budget.written) if one.target is None else one.target for one in answered),
            sum(one.capped for one in answered),
            frozenset(one.call for one in answered),
        )


@dataclass(frozen=True, repr=False)
class Results:
    """What `evaluate` returns: `scores` of all finished runs, the uncompressed model ("vanilla") first.

    `print(results)` shows them as tables.

    unit: what `images` counts: images, videos, or items
    by_agreement: whether no right answer is known; retention is then agreement with the uncompressed model
    settings: what the answers depend on besides methods and budgets
    tallies, same_answers, costs: the figures of each run, from which `scores` and `differences` are computed
    reference: the method that `differences` are taken from; None means CoViST-Fixed or, without it, the first method
    """

    suite: str
    families: tuple[str, ...]
    images: int
    unit: str
    questions: int
    by_agreement: bool
    settings: dict[str, Any]
    tallies: dict[Run, Tally]
    same_answers: dict[Run, float]
    costs: dict[Run, RunCost]
    seed: int
    reference: str | None = None

    @classmethod
    def build(cls, suite: Suite, items: list[Item], runs: list[Run], records: Records, seed: int) -> Results:
        """Results of finished runs; without the uncompressed model among them there are no scores."""
        reference = next((records.of(run) for run in runs if run.method == VANILLA), None)
        finished = [] if reference is None else runs
        answered = {run: [records.of(run)[item.number] for item in items] for run in finished}
        asked = [question for item in items for question in item.questions]
        return cls(
            suite=suite.name,
            families=suite.families,
            images=len(items),
            unit=suite.unit,
            questions=len(asked),
            by_agreement=all(question.metric == AGREEMENT for question in asked),
            settings=dict(records.settings),
            tallies={run: tally(items, records.of(run), suite.families, reference) for run in finished},
            same_answers={run: answer_agreement(items, records.of(run), reference or {}) for run in finished},
            costs={run: RunCost.of(run, own) for run, own in answered.items()},
            seed=seed,
        )

    @property
    def measure(self) -> str:
        """ "retention", or "agreement" if no right answers are known."""
        return AGREEMENT if self.by_agreement else "retention"

    @property
    def about(self) -> str:
        """`2,522 questions about 320 images`."""
        return f"{counted(self.questions, 'question')} about {counted(self.images, self.unit)}"

    @cached_property
    def _vanilla(self) -> Run | None:
        return next((run for run in self.tallies if run.method == VANILLA), None)

    @cached_property
    def _full(self) -> Tally:
        """The tally of the uncompressed model, without which there are no others."""
        return next(own for run, own in self.tallies.items() if run.method == VANILLA)

    @cached_property
    def reaches(self) -> dict[Run, Reach]:
        """How many tokens each budget came to, by run."""
        if self._vanilla is None:
            return {}
        tokens = round(self.costs[self._vanilla].tokens)
        return {
            run: reach_of(run.method, run.budget, round(cost.target), tokens, cost.tokens, cost.cached_tokens)
            for run, cost in self.costs.items()
            if run != self._vanilla
        }

    @property
    def notes(self) -> list[str]:
        """What to know about budgets that images did not get exactly, one line each."""
        capped = [
            f"{run.method}: {capped_note(run.budget, cost.capped, self.images, self.unit)}"
            for run, cost in self.costs.items()
            if cost.capped
        ]
        return [*distinct_notes(self.reaches.values()), *capped]

    @cached_property
    def cache_differs(self) -> bool:
        """Whether some method has fewer tokens in the cache than in prefill."""
        return any(cost.cached_tokens != cost.tokens for cost in self.costs.values())

    @cached_property
    def scores(self) -> list[Score]:
        return [] if self._vanilla is None else [self._score(run, self._vanilla) for run in self.tallies]

    def _score(self, run: Run, vanilla: Run) -> Score:
        own, cost, made = self.tallies[run], self.costs[run], self.reaches.get(run)
        scored = accuracy(own, self.seed)
        kept = retention(own, self._full, self.seed)
        return Score(
            method=run.method,
            budget=run.budget,
            mean_tokens=cost.tokens,
            mean_cached_tokens=cost.cached_tokens,
            counted_tokens=cost.cached_tokens if made is None else made.mean,
            accuracy=scored.value,
            accuracy_interval=scored.interval,
            retention=kept.value,
            retention_interval=kept.interval,
            families=dict(zip(self.families, family_scores(own).tolist(), strict=True)),
            same_answers=self.same_answers[run],
            target=cost.target,
            seconds_per_image=cost.seconds,
            reached=made is None or made.is_reached,
            nominal=made is not None and made.nominal,
            times_mixed=len(cost.calls | self.costs[vanilla].calls) > 1,
            capped=cost.capped,
        )

    def difference(self, method: str, against: str, budget: Budget | Written) -> Difference:
        """Paired difference in retention between two methods."""
        at = Budget.parse(budget)
        for name in (method, against):
            if Run(name, at) not in self.tallies:
                raise CovistError(f"{name!r} was not evaluated at a budget of {at}")
        own, other = Run(method, at), Run(against, at)
        p = sign_flip(contributions(self.tallies[own], self.tallies[other], self._full))
        return Difference(method, against, at, *self.between(own, other), p, p_holm=p, images=self.images)

    def between(self, run: Run, against: Run) -> Estimate:
        """Paired difference in retention between two runs, whatever their budgets, with its 95% interval."""
        return difference(self.tallies[run], self.tallies[against], self._full, self.seed)

    @cached_property
    def differences(self) -> list[Difference]:
        """Every method against `reference` at the same budget.

        Budgets that a method cannot reach are left out, because its retention belongs to more tokens. Holm's
        correction covers all differences of the list.
        """
        compressed = [run for run, made in self.reaches.items() if made.is_reached]
        names = [run.method for run in compressed]
        if not names:
            return []
        against = self.reference or (PREFERRED_REFERENCE if PREFERRED_REFERENCE in names else names[0])
        found = [
            self.difference(run.method, against, run.budget)
            for run in compressed
            if run.method != against and Run(against, run.budget) in compressed
        ]
        corrected = holm([difference.p for difference in found])
        return [replace(difference, p_holm=p) for difference, p in zip(found, corrected, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None for what cannot be computed."""
        return {
            "suite": self.suite,
            "measure": self.measure,
            "unit": self.unit,
            "images": self.images,
            "questions": self.questions,
            "settings": self.settings,
            "results": [_score_dict(score) for score in self.scores],
            "differences": [_difference_dict(difference) for difference in self.differences],
            "versions": versions(),
        }

    def to_markdown(self) -> str:
        return markdown(self)

    def __repr__(self) -> str:
        """Scores and differences as tables."""
        return plain_text(self)

    def write(self, directory: str | Path) -> None:
        """Write results.json, results.md and, where matplotlib is installed, retention.png."""
        folder = Path(directory)
        write_json(folder / "results.json", self.to_dict())
        write_text(folder / "results.md", self.to_markdown())
        if lacking := lack_of("figures"):
            warnings.warn(f"retention.png is left out: it needs {lacking}", stacklevel=2)
            (folder / PLOT).unlink(missing_ok=True)  # an older one does not show these results
            return
        from covist.eval.plot import plot_retention  # slow to import

        plot_retention(self, folder / f".{PLOT}")
        with writing(folder):
            (folder / f".{PLOT}").replace(folder / PLOT)


def _number(value: float, digits: int = _DIGITS) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _pair(interval: Interval) -> list[float | None]:
    return [_number(end) for end in interval]


def _score_dict(score: Score) -> dict[str, Any]:
    return {
        "method": score.method,
        "budget": score.budget.written,
        "mean_tokens": _number(score.mean_tokens),
        "mean_cached_tokens": _number(score.mean_cached_tokens),
        "target": _number(score.target),
        "counted_tokens": _number(score.counted_tokens),
        "reached": score.reached,
        "nominal": score.nominal,
        "accuracy": _number(score.accuracy),
        "retention": _number(score.retention),
        "families": {family: _number(value) for family, value in score.families.items()},
        "same_answers": _number(score.same_answers),
        "ci": {"accuracy": _pair(score.accuracy_interval), "retention": _pair(score.retention_interval)},
        "seconds_per_image": _number(score.seconds_per_image, 4),
        "times_mixed": score.times_mixed,
        "capped": score.capped,
    }


def _difference_dict(difference: Difference) -> dict[str, Any]:
    return {
        "method": difference.method,
        "against": difference.against,
        "budget": difference.budget.written,
        "retention": _number(difference.retention),
        "ci": _pair(difference.interval),
        "clear": difference.is_clear,
        "p": _number(difference.p, 5),
        "p_holm": _number(difference.p_holm, 5),
        "clear_among_all": difference.is_clear_among_all,
    }
