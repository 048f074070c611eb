"""Find the smallest sufficient budget from as few answers as possible: a race over growing samples.

The question. A budget *passes* if the lower confidence bound of its retention reaches `keep`. Retention need not rise
with every budget, so the answer is defined from above: the smallest budget that passes together with every larger one
of the ladder. That is a fixed sequence of tests, each at the same level, that ends with the first failure. The chance
that it goes past a budget whose true retention is below `keep` is at most the level of a single test, however many
budgets there are.

The bound. Losses are rare at the budgets that matter, and the item that costs most may be one that the sample does not
have. Every draw of the bootstrap therefore has one more item, which loses every answer where that is dearest
(`covist.eval.resampling`): in a family of five questions, a lost answer costs more than in one of five hundred. A
family from which the uncompressed model has given no right answer yet counts as lost. A family that gains by
compression counts as kept, so that it cannot pay for another that loses.

The race. Budgets are tried from the largest down. Each is answered on a growing sample of the items, in random order.
Every look tests the same claim about the items of this kind, not about the rest of the file, each with its own part of
the error; the parts add up to the whole (Bonferroni), so the promise holds whatever the looks have in common. A budget
is dropped as soon as the sample shows that it keeps too little, or that it cannot pass any more. A budget that is
dropped wrongly costs tokens but breaks no promise; `DROPPED` bounds how often that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from math import ceil, floor, log
from typing import Generic, TypeVar

import numpy as np

from covist.eval.resampling import highest, lowest, resample
from covist.eval.statistics import Interval, Tally, mean_ratio

ERROR = 0.05
EARLY = 0.2  # share of the error that is spent on early looks
DROPPED = 0.05  # chance of dropping a budget early that keeps enough
FIRST_LOOK, GROWTH = 16, 1.5
DRAWS = 9999

Rung = TypeVar("Rung")


class Verdict(str, Enum):
    PASSES = "passes"
    FAILS = "fails"
    OPEN = "open"


@dataclass(frozen=True)
class Sample:
    """Right answers on the first items, with a budget and without compression; both [items, families]."""

    right: np.ndarray
    full: np.ndarray

    @classmethod
    def of(cls, tally: Tally, vanilla: Tally) -> Sample:
        return cls(tally.right, vanilla.right)

    @property
    def items(self) -> int:
        return len(self.right)

    @property
    def retention(self) -> float:
        """In percent; 0 if the uncompressed model is never right."""
        found = float(mean_ratio(self.rows.sum(0)))
        return 0.0 if np.isnan(found) else found

    @property
    def rows(self) -> np.ndarray:
        return np.hstack([self.right, self.full])


class BudgetTest:
    """A test for a retention of at least `keep`; it passes wrongly with a probability of at most `error`.

    asked: questions by item and family, in the order in which items are answered, [items, families]
    draws: of the bootstrap; the test counts them, so that its promise holds with any number
    """

    def __init__(self, keep: float, asked: np.ndarray, error: float = ERROR, draws: int = DRAWS):
        self.keep, self.asked, self.error, self.draws = keep, np.asarray(asked, dtype=float), error, draws
        self.items = len(self.asked)
        self._families = self.asked.sum(0) > 0
        lost, kept = np.zeros_like(self.asked), self.asked
        self._lost, self._kept = (np.unique(np.hstack([right, kept]), axis=0) for right in (lost, kept))

    @property
    def final_error(self) -> float:
        return self.error * (1 - EARLY)

    @property
    def looks(self) -> list[int]:
        """Sizes of the growing sample; the last one is all items.

        >>> import numpy as np
        >>> BudgetTest(99, np.ones((100, 1))).looks
        [16, 24, 36, 54, 81, 100]
        """
        sizes: list[int] = []
        size = FIRST_LOOK
        while size < self.items:
            sizes.append(size)
            size = ceil(size * GROWTH)
        return [*sizes, self.items]

    def judge(self, sample: Sample) -> Verdict:
        """Whether the sample shows that a budget keeps enough, that it does not, or neither."""
        low, high = self._ends(sample.rows)
        is_last = sample.items >= self.items
        others = max(1, len(self.looks) - 1)
        if _lower(low, self.final_error if is_last else self.error * EARLY / others) >= self.keep:
            return Verdict.PASSES
        if is_last or -_lower(-high, DROPPED / others) < self.keep or self._best_end(sample) < self.keep:
            return Verdict.FAILS
        return Verdict.OPEN

    def interval(self, sample: Sample) -> Interval:
        """An interval for the retention; the lower end is the bound of the test on all items."""
        low, high = self._ends(sample.rows)
        return _lower(low, self.final_error), -_lower(-high, self.final_error)

    @cached_property
    def best_bound(self) -> float:
        """The most that these items can show: the lower bound on all of them if every answer is right and none is lost.

        A wrong or lost answer lowers every draw, and an earlier look has fewer items and a smaller part of the error.
        Answers that compression puts right could make up for lost ones of their family; nobody can count on them.

        In a draw, a family of the added item keeps S / (S + w): S is the sum of the items' weights times their
        questions, in units of the added item's, and w its weight. If S is the same in all of these families, the share
        of the draws below b is E exp(-S t) with t = 1/b - 1, the product of 1 / (1 + questions t): no draw is needed.
        """
        hit = self._dearest > 0
        questions = self.asked[:, hit] / self._dearest[hit]  # [items, families of the added item]
        if (questions != questions[:, :1]).any():
            return self._bound_without_loss(self._no_rows, self.asked)
        from scipy.optimize import brentq

        alike = questions[:, 0]
        wanted, most = -log(self.final_error), 2.0
        while np.log1p(most * alike).sum() < wanted:
            most *= 2
        found = brentq(lambda t: np.log1p(t * alike).sum() - wanted, 0.0, most)
        return 100 - 100 * self._weight_of_dearest * found / (1 + found)

    @property
    def items_needed(self) -> int:
        """About how many items of this kind could show `keep`; exact for one question per item, in one family."""
        now, then = (1 - (1 - bound / 100) / self._weight_of_dearest for bound in (self.best_bound, self.keep))
        return ceil(self.items * log(now) / log(then))

    @cached_property
    def _dearest(self) -> np.ndarray:
        """The questions of the item whose loss costs most if nothing else is lost, [families]."""
        sums = np.hstack([self.asked, self.asked])
        return np.split(lowest(sums, self._lost, partial(self._retention, unknown=0.0)), 2)[1]

    @property
    def _weight_of_dearest(self) -> float:
        """The share of its families in the retention."""
        return float((self._dearest > 0).sum() / self._families.sum())

    @property
    def scarcest_family(self) -> int:
        """The family with the fewest items, by its place."""
        return int(np.argmin(np.where(self._families, (self.asked > 0).sum(0), np.inf)))

    def best_lower_bound(self, sample: Sample) -> float:
        """The lower bound on all items if no answer were lost."""
        return self._bound_without_loss(self._no_rows, self.asked * self._shares(sample))

    def _best_end(self, sample: Sample) -> float:
        """The lower bound on all items if no further answer were lost."""
        return self._bound_without_loss(sample.rows, self.asked[sample.items :] * self._shares(sample))

    @property
    def _no_rows(self) -> np.ndarray:
        return np.empty((0, 2 * self.asked.shape[1]))

    def _bound_without_loss(self, rows: np.ndarray, kept: np.ndarray) -> float:
        low, _ = self._ends(np.vstack([rows, np.hstack([kept, kept])]))
        return _lower(low, self.final_error)

    def _shares(self, sample: Sample) -> np.ndarray:
        """The uncompressed model's score by family, [families]; 1 where it is not known yet."""
        asked = self.asked[: sample.items].sum(0)
        return np.divide(sample.full.sum(0), asked, out=np.ones_like(asked), where=asked > 0)

    def _ends(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The retention in every draw, with one more item that loses everything, and with one that keeps everything."""
        feared, hoped = (partial(self._retention, unknown=unknown) for unknown in (0.0, 1.0))
        ends = [(lowest(rows, self._lost, feared), feared), (highest(rows, self._kept, hoped), hoped)]
        low, high = resample(rows, ends, draws=self.draws)
        return low, high

    def _retention(self, sums: np.ndarray, unknown: float) -> np.ndarray:
        """In percent; no family has more than all, and those without a right answer have what is `unknown`."""
        right, full = (half[..., self._families] for half in np.split(sums, 2, axis=-1))
        kept = np.divide(right, full, out=np.full(full.shape, unknown), where=full > 0)
        return 100.0 * np.minimum(kept, 1.0).mean(-1)


def _lower(draws: np.ndarray, error: float) -> float:
    """The value below which lies a share of the draws of at most `error`, the real sample counted as one of them."""
    place = floor(error * (len(draws) + 1)) - 1
    return float(np.partition(draws, place)[place]) if place >= 0 else -np.inf


@dataclass(frozen=True)
class Step(Generic[Rung]):
    """The last sample of a budget in the race, and its verdict."""

    rung: Rung
    sample: Sample
    verdict: Verdict


def race(
    ladder: Sequence[Rung], test: BudgetTest, answer: Callable[[Rung, int], Sample], early: bool = True
) -> list[Step[Rung]]:
    """Try a ladder from its first rung, the largest budget, down to the first that fails.

    answer: gives the answers of a rung on the first so many items of the random order
    early: False waits for all items
    """
    steps: list[Step[Rung]] = []
    for rung in ladder:
        for look in test.looks if early else [test.items]:
            sample = answer(rung, look)
            verdict = test.judge(sample)
            if verdict is not Verdict.OPEN:
                break
        steps.append(Step(rung, sample, verdict))
        if verdict is Verdict.FAILS:
            break
    return steps


def smallest_passing(steps: Sequence[Step[Rung]]) -> Step[Rung] | None:
    """The last rung that passed, if any did."""
    passed = [step for step in steps if step.verdict is Verdict.PASSES]
    return passed[-1] if passed else None
