"""The same methods, budgets and images under several conditions, paired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from covist.api.setup import Setup
from covist.budget import Count
from covist.eval.answering import SuiteAnswerer, answers_identity
from covist.eval.records import Records, Run
from covist.eval.statistics import Estimate, Tally, accuracy, difference, retention
from covist.eval.subject import Subject
from covist.eval.suite import Item, Suite
from covist.eval.tally import tally
from covist.methods.grammar import VANILLA

Condition = Callable[[Subject], AbstractContextManager[object]]
"""Changes the model inside a `with` block."""


@dataclass(frozen=True)
class Variant:
    """What runs under a condition; the name is also that of its folder of answers."""

    name: str
    condition: Condition
    runs: Sequence[Run]


class Study:
    """Answers of one model to the first images of a suite, kept in a folder so that a stopped study continues."""

    def __init__(self, suite: Suite, limit: int, subject: Subject, out: Path):
        out.mkdir(parents=True, exist_ok=True)
        self.suite, self.subject, self.out = suite, subject, out
        self.items: list[Item] = suite.items(limit)
        self.vanilla = Run(VANILLA, Count(round(subject.tokens(self.items[0]))))
        self.tallies: dict[tuple[str, Run], Tally] = {}
        self.tokens: dict[tuple[str, Run], float] = {}  # layer means of visual tokens

    def measure(self, variant: Variant) -> None:
        identity = answers_identity(self.suite, self.subject, None, Setup(), 0)
        with Records(self.out / variant.name, identity) as records, variant.condition(self.subject):
            SuiteAnswerer(self.subject, self.suite, self.items, records, 0).answer(variant.runs)
            for run in variant.runs:
                answered = records.of(run)
                self.tallies[variant.name, run] = tally(self.items, answered, self.suite.families)
                self.tokens[variant.name, run] = mean(answered[item.number].tokens for item in self.items)

    @property
    def _full(self) -> Tally:
        return next(own for (_, run), own in self.tallies.items() if run == self.vanilla)

    def accuracy(self) -> Estimate:
        """Of the uncompressed model."""
        return accuracy(self._full)

    def retention(self, variant: str, run: Run) -> Estimate:
        return retention(self.tallies[variant, run], self._full)

    def gain(self, variant: str, against: str, run: Run) -> Estimate:
        """Retention under a condition minus that under another, on the same images."""
        return difference(self.tallies[variant, run], self.tallies[against, run], self._full)


def written(estimate: Estimate, sign: str = "") -> str:
    """`94.0 [91.9, 96.0]`"""
    low, high = estimate.interval
    return f"{estimate.value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))
