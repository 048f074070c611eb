"""Find the smallest sufficient budget from as few answers as possible: a race over growing samples.

The question. A budget *passes* if the lower confidence bound of its retention, measured on all items, reaches `keep`.
Retention need not rise with every budget, so the answer is defined from above: the smallest budget that passes together
with every larger one of the ladder. That is a fixed sequence of tests, each at the same level, that ends with the first
failure. The chance that it goes past a budget whose true retention is below `keep` is at most the level of a single
test, however many budgets there are.

The race. Budgets are tried from the largest down. Each is answered on a growing sample of the items, in random order,
and is dropped or accepted as soon as the sample shows how the test on all items will end. The sample is drawn from the
items without replacement, so the uncertainty is about the draw and not about the model. After a share f of the items,
a loss that would just pass has an expected value of f times itself, and a variance of f (1 - f) times its own. A loss
that is further away than chance allows decides the test. Every look may accept a budget wrongly with a small
probability; the looks share a part of the total error (`EARLY`), and the final test has the rest. A budget that is
dropped wrongly costs tokens but breaks no promise; `DROPPED` bounds how often that happens.

The bound. At the budgets that matter, few answers are lost, and a normal interval is too short: without any loss its
length would be zero. Wilson's interval for counts is used instead, with the cost of one lost answer as the unit: at
zero losses in n answers it allows 2.7 / n, close to the exact 3 / n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, sqrt
from statistics import NormalDist
from typing import Generic, TypeVar

from covist.eval.statistics import Interval, Tally

ERROR = 0.05
EARLY = 0.2  # share of the error that is spent on early looks
DROPPED = 0.05  # chance of dropping a budget that would have passed on all items
FIRST_LOOK, GROWTH = 16, 1.5

Rung = TypeVar("Rung")


class Verdict(str, Enum):
    PASSES = "passes"
    FAILS = "fails"
    OPEN = "open"


@dataclass(frozen=True)
class Loss:
    """What compression costs on some items, in percentage points of retention, summed over the items.

    total: items x (100 - retention); negative if compression helps
    variance: of that sum, for a new sample of as many items
    unit: what a single lost answer adds to the sum, on average over the answers that could be lost
    """

    items: int
    total: float
    variance: float
    unit: float

    @classmethod
    def of(cls, tally: Tally, vanilla: Tally) -> Loss:
        """From the tallies of a run and of vanilla; the delta method gives the variance of this mean of ratios."""
        items = len(tally.right)
        full = vanilla.right.sum(0)  # [families]
        known = full > 0
        if not known.any():
            return cls(items, 100.0 * items, 0.0, 100.0)
        right, reference = tally.right[:, known], vanilla.right[:, known]  # [items, families]
        ratios = right.sum(0) / full[known]
        answer = 100.0 / known.sum() / (full[known] / items)  # what one right answer adds, by family
        moves = ((right - ratios * reference) * answer).sum(1)  # [items], around zero
        spread = float((moves**2).sum()) * items / max(1, items - 1)
        return cls(items, items * 100.0 * (1.0 - float(ratios.mean())), spread, 100.0 * items / float(full.sum()))

    @property
    def retention(self) -> float:
        return 100.0 - self.total / self.items

    def interval(self, error: float) -> Interval:
        """An interval for the retention; each end is wrong with a probability of `error`."""
        z = NormalDist().inv_cdf(1 - error)
        middle = self.total + z**2 * self.unit / 2
        reach = z * sqrt(self.variance + (z * self.unit / 2) ** 2)
        low, high = (100.0 - (middle + side * reach) / self.items for side in (1, -1))
        return max(0.0, low), high


@dataclass(frozen=True)
class BudgetTest:
    """A test for a retention of at least `keep` on `items` items; it passes wrongly with a probability of `error`."""

    keep: float
    items: int
    error: float = ERROR

    @property
    def final_error(self) -> float:
        return self.error * (1 - EARLY)

    @property
    def looks(self) -> list[int]:
        """Sizes of the growing sample; the last one is all items.

        >>> BudgetTest(99, items=100).looks
        [16, 24, 36, 54, 81, 100]
        """
        sizes: list[int] = []
        size = FIRST_LOOK
        while size < self.items:
            sizes.append(size)
            size = ceil(size * GROWTH)
        return [*sizes, self.items]

    def best_lower_bound(self, loss: Loss) -> float:
        """The lower bound if no answer were lost."""
        return Loss(self.items, 0.0, 0.0, loss.unit).interval(self.final_error)[0]

    def judge(self, loss: Loss) -> Verdict:
        """On all items the bound decides; on fewer, the expected bound decides if it is clear enough."""
        if loss.items >= self.items:
            return Verdict.PASSES if loss.interval(self.final_error)[0] >= self.keep else Verdict.FAILS
        share = loss.items / self.items
        allowed, variance = self._allowed(loss)
        deviation = sqrt(share * (1 - share) * variance)
        distance = (loss.total - share * allowed) / deviation
        if distance <= -self._clear(self.error * EARLY):
            return Verdict.PASSES
        return Verdict.FAILS if distance >= self._clear(DROPPED) else Verdict.OPEN

    def _clear(self, error: float) -> float:
        """The number of standard deviations that any of the early looks exceeds by chance with probability `error`."""
        return NormalDist().inv_cdf(1 - error / (len(self.looks) - 1))

    def _allowed(self, loss: Loss) -> tuple[float, float]:
        """The largest loss on all items that passes, and its variance.

        The variance is at least that of as many lost answers as make up the loss: a sample without any loss must not
        pass with certainty.
        """
        z, unit, room = NormalDist().inv_cdf(1 - self.final_error), loss.unit, self.items * (100.0 - self.keep)
        variance = loss.variance * self.items / loss.items
        allowed = room - z**2 * unit / 2 - z * sqrt(variance + (z * unit / 2) ** 2)
        allowed = min(allowed, room - z * sqrt(unit * room))
        return allowed, max(variance, unit * max(allowed, unit))


@dataclass(frozen=True)
class Step(Generic[Rung]):
    """The last loss of a budget in the race, and its verdict."""

    rung: Rung
    loss: Loss
    verdict: Verdict


def race(
    ladder: Sequence[Rung], test: BudgetTest, measure: Callable[[Rung, int], Loss], early: bool = True
) -> list[Step[Rung]]:
    """Try a ladder from its first rung, the largest budget, down to the first that fails.

    measure: gives the loss of a rung on the first so many items of the random order
    early: False waits for all items; the race should give the same result
    """
    steps: list[Step[Rung]] = []
    for rung in ladder:
        for look in test.looks if early else [test.items]:
            loss = measure(rung, look)
            verdict = test.judge(loss)
            if verdict is not Verdict.OPEN:
                break
        steps.append(Step(rung, loss, verdict))
        if verdict is Verdict.FAILS:
            break
    return steps


def smallest_passing(steps: Sequence[Step[Rung]]) -> Step[Rung] | None:
    """The last rung that passed, if any did."""
    passed = [step for step in steps if step.verdict is Verdict.PASSES]
    return passed[-1] if passed else None
