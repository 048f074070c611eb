"""What an evaluation found: scores with intervals, as JSON, as Markdown and as a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from covist.environment import versions
from covist.errors import CovistError
from covist.eval.records import Answered, Records, Run
from covist.eval.statistics import Bootstrap, Interval, Tally, estimate
from covist.eval.suite import Item, Suite
from covist.eval.tables import markdown
from covist.methods.grammar import VANILLA
from covist.outputs import write_json
from covist.request.budgets import Reach

_DIGITS = 2
PREFERRED_REFERENCE = "covist-fixed"


@dataclass(frozen=True)
class Score:
    """One method at one budget; accuracy, families and retention in percent, with 95% intervals."""

    method: str
    budget: int
    mean_tokens: float  # visual tokens of prefill, averaged over layers and images
    mean_cached_tokens: float  # in the cache after it: what the budget counts
    accuracy: float  # mean of the families
    accuracy_interval: Interval
    retention: float
    retention_interval: Interval
    families: dict[str, float]
    seconds_per_image: float  # to answer all questions about an image
    reached: bool  # whether the method can keep as few tokens as the budget says; if not, its cell is not ranked
    times_mixed: bool  # whether some of its times or of vanilla's come from another sitting: do not compare them


@dataclass(frozen=True)
class Difference:
    """Retention of a method minus retention of another at the same budget, on the same images."""

    method: str
    against: str
    budget: int
    retention: float
    interval: Interval

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        low, high = self.interval
        return low > 0 or high < 0


@dataclass(frozen=True)
class Cost:
    """Means over the images of a run, and the sittings in which they were measured."""

    seconds: float
    tokens: float
    cached_tokens: float
    sittings: frozenset[str]

    @classmethod
    def of(cls, answered: list[Answered]) -> Cost:
        return cls(
            mean(one.seconds for one in answered),
            mean(one.tokens for one in answered),
            mean(one.cached_tokens for one in answered),
            frozenset(one.sitting for one in answered),
        )


@dataclass(frozen=True)
class Results:
    """Scores of all finished runs, vanilla first."""

    suite: str
    families: tuple[str, ...]
    images: int
    questions: int
    settings: dict[str, Any]
    tallies: dict[Run, Tally]
    costs: dict[Run, Cost]
    seed: int

    @classmethod
    def build(cls, suite: Suite, items: list[Item], runs: list[Run], records: Records, seed: int) -> Results:
        answered = {run: [records.of(run)[item.number] for item in items] for run in runs}
        return cls(
            suite=suite.name,
            families=suite.families,
            images=len(items),
            questions=sum(len(item.questions) for item in items),
            settings=dict(records.settings),
            tallies={run: tally(items, records.of(run), suite.families) for run in runs},
            costs={run: Cost.of(own) for run, own in answered.items()},
            seed=seed,
        )

    @cached_property
    def _bootstrap(self) -> Bootstrap:
        return Bootstrap(self.images, self.seed)

    @cached_property
    def _vanilla(self) -> Run | None:
        return next((run for run in self.tallies if run.method == VANILLA), None)

    @cached_property
    def _retentions(self) -> dict[Run, np.ndarray]:
        """Per run the retention of every draw."""
        if self._vanilla is None:
            return {}
        vanilla = self.tallies[self._vanilla]
        return {run: self._bootstrap.retention(tally, vanilla) for run, tally in self.tallies.items()}

    @cached_property
    def reaches(self) -> dict[Run, Reach]:
        """What every method made of its budget."""
        if self._vanilla is None:
            return {}
        tokens = self._vanilla.budget
        compressed = ((run, cost) for run, cost in self.costs.items() if run != self._vanilla)
        return {run: Reach(run.method, run.budget, run.budget, tokens, cost.cached_tokens) for run, cost in compressed}

    @cached_property
    def cache_differs(self) -> bool:
        """Whether some method keeps fewer tokens in the cache than its prefill ran over."""
        return any(cost.cached_tokens != cost.tokens for cost in self.costs.values())

    @cached_property
    def scores(self) -> list[Score]:
        return [self._score(run) for run in self._retentions]

    def _score(self, run: Run) -> Score:
        tally, cost = self.tallies[run], self.costs[run]
        accuracy, accuracy_interval = estimate(self._bootstrap.accuracy(tally))
        retention, retention_interval = estimate(self._retentions[run])
        return Score(
            method=run.method,
            budget=run.budget,
            mean_tokens=cost.tokens,
            mean_cached_tokens=cost.cached_tokens,
            accuracy=accuracy,
            accuracy_interval=accuracy_interval,
            retention=retention,
            retention_interval=retention_interval,
            families=dict(zip(self.families, self._bootstrap.family_scores(tally)[0].tolist(), strict=True)),
            seconds_per_image=cost.seconds,
            reached=run == self._vanilla or self.reaches[run].is_reached,
            times_mixed=len(cost.sittings | self.costs[self._vanilla or run].sittings) > 1,
        )

    def difference(self, method: str, against: str, budget: int) -> Difference:
        """Paired difference in retention between two methods."""
        for name in (method, against):
            if Run(name, budget) not in self._retentions:
                raise CovistError(f"{name!r} was not evaluated at a budget of {budget}")
        apart = self._retentions[Run(method, budget)] - self._retentions[Run(against, budget)]
        return Difference(method, against, budget, *estimate(apart))

    @cached_property
    def differences(self) -> list[Difference]:
        """Every method against CoViST-Fixed (or, without it, against the first method) at the same budget.

        A budget that a method cannot reach is left out: its retention belongs to more tokens.
        """
        compressed = [run for run, made in self.reaches.items() if made.is_reached]
        names = [run.method for run in compressed]
        if not names:
            return []
        against = PREFERRED_REFERENCE if PREFERRED_REFERENCE in names else names[0]
        return [
            self.difference(run.method, against, run.budget)
            for run in compressed
            if run.method != against and Run(against, run.budget) in compressed
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; what cannot be computed is None."""
        return {
            "suite": self.suite,
            "images": self.images,
            "questions": self.questions,
            "settings": self.settings,
            "results": [_score_dict(score) for score in self.scores],
            "differences": [_difference_dict(difference) for difference in self.differences],
            "versions": versions(),
        }

    def to_markdown(self) -> str:
        return markdown(self)

    def write(self, directory: str | Path) -> None:
        """results.json, results.md and retention.png."""
        from covist.eval.plot import plot_retention  # matplotlib is slow to import

        folder = Path(directory)
        write_json(folder / "results.json", self.to_dict())
        (folder / "results.md").write_text(self.to_markdown(), encoding="utf-8")
        plot_retention(self, folder / "retention.png")


def normalise(answer: str) -> str:
    """Case, outer space and a final full stop do not matter; everything else does."""
    return answer.strip().rstrip(".").strip().lower()


def tally(items: list[Item], answered: dict[int, Answered], families: tuple[str, ...]) -> Tally:
    """Count exact matches per image and family."""
    right = np.zeros((len(items), len(families)), dtype=np.int64)
    asked = np.zeros_like(right)
    for row, item in enumerate(items):
        for question, answer in zip(item.questions, answered[item.number].answers, strict=True):
            column = families.index(question.family)
            asked[row, column] += 1
            right[row, column] += normalise(answer) == normalise(question.answer)
    return Tally(right, asked)


def _number(value: float, digits: int = _DIGITS) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _pair(interval: Interval) -> list[float | None]:
    return [_number(end) for end in interval]


def _score_dict(score: Score) -> dict[str, Any]:
    return {
        "method": score.method,
        "budget": score.budget,
        "mean_tokens": _number(score.mean_tokens),
        "mean_cached_tokens": _number(score.mean_cached_tokens),
        "reached": score.reached,
        "accuracy": _number(score.accuracy),
        "retention": _number(score.retention),
        "families": {family: _number(value) for family, value in score.families.items()},
        "ci": {"accuracy": _pair(score.accuracy_interval), "retention": _pair(score.retention_interval)},
        "seconds_per_image": _number(score.seconds_per_image, 4),
        "times_mixed": score.times_mixed,
    }


def _difference_dict(difference: Difference) -> dict[str, Any]:
    return {
        "method": difference.method,
        "against": difference.against,
        "budget": difference.budget,
        "retention": _number(difference.retention),
        "ci": _pair(difference.interval),
        "clear": difference.is_clear,
    }
