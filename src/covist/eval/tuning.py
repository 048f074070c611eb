"""`tune`: find the smallest budget that retains enough, with as few answers as possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from covist.api.origin import tuned_on
from covist.api.report import Report
from covist.api.setup import Setup
from covist.budget import Budget, Coverage, Written
from covist.config import CovistConfig
from covist.environment import versions
from covist.errors import CovistError
from covist.eval.answering import Progress, SuiteAnswerer, answers_identity
from covist.eval.questions import AGREEMENT
from covist.eval.racing import ERROR, BudgetTest, Sample, Step, Verdict, race, smallest_passing
from covist.eval.records import Records, Run
from covist.eval.runner import method_names, planned_runs, read_budgets
from covist.eval.statistics import Interval
from covist.eval.subject import Subject
from covist.eval.suite import Item, Suite, load_suite
from covist.eval.tables import text_table
from covist.eval.tally import questions_asked, tally
from covist.methods.grammar import VANILLA
from covist.request.answer import compressed
from covist.units import counted, interval, percent

LADDER = ("50%", "33.3%", "22.2%", "16.7%", "11.1%", "8.3%", "5.6%", "4.2%", "2.8%")
"""The default budgets: of 576 tokens these are 288, 192, 128, 96, 64, 48, 32, 24 and 16."""


@dataclass(frozen=True)
class Tried:
    """The result of one budget: the number of items, the retention, and whether that is enough."""

    method: str
    budget: Budget
    items: int
    retention: float
    interval: Interval
    verdict: Verdict

    @classmethod
    def of(cls, step: Step[Run], test: BudgetTest) -> Tried:
        run, sample = step.rung, step.sample
        return cls(run.method, run.budget, sample.items, sample.retention, test.interval(sample), step.verdict)


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`.

    keep: the retention to reach, in percent
    measure: "retention", or "agreement" if no right answers are known
    unit: what tables call an item
    items: the number of items
    curve: every budget that was tried, in the order of the trials
    setup: what to save as `covist.json`; None if no budget retains enough
    report: tokens, cache and FLOPs of the first item before and after compression at the chosen budget
    best_bound: the highest lower bound that this data could give, if no answer were lost
    unknown: families in which the uncompressed model gives no right answer, so that nothing can be shown about them
    answered, exhaustive: items x runs that were answered, and that all budgets on all items would have needed
    """

    suite: str
    keep: float
    measure: str
    unit: str
    items: int
    curve: list[Tried]
    setup: Setup | None
    report: Report | None
    best_bound: float
    unknown: tuple[str, ...]
    answered: int
    exhaustive: int

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of the budgets that were tried; the last column is the verdict."""
        head = ["method", "K", f"{self.unit}s", self.measure, "between", "verdict"]
        rows = [
            [
                *(tried.method, str(tried.budget), str(tried.items)),
                *(percent(tried.retention), interval(tried.interval), tried.verdict.value),
            ]
            for tried in self.curve
        ]
        return head, rows

    def __repr__(self) -> str:
        """The budgets that were tried, as a table, and the chosen one."""
        found = f"{self.setup.method} at a budget of {self.setup.budget}" if self.setup else "no budget suffices"
        asked = f"{self.suite}: keep {self.keep:g} % with 95 % confidence"
        return f"{asked}\n\n{text_table(*self.table())}\n\n{found}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "suite": self.suite,
            "keep": self.keep,
            "measure": self.measure,
            "unit": self.unit,
            "items": self.items,
            "curve": [_row(tried) for tried in self.curve],
            "chosen": None if self.setup is None else self.setup.to_dict(),
            "saved": None if self.report is None else _saved(self.report),
            "best_bound": round(self.best_bound, 2),
            "unknown": list(self.unknown),
            "answered": self.answered,
            "exhaustive": self.exhaustive,
        }


def tune(
    keep: float = 99.0,
    *,
    suite: str | Suite = "scenes",
    methods: str | Iterable[str] = "covist-fixed",
    budgets: str | Iterable[Budget | Written] | None = None,
    max_budget: Budget | Written | None = None,
    limit: int | None = None,
    model: Any = None,
    max_new_tokens: int | None = None,
    config: CovistConfig | Setup | str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    early: bool = True,
    progress: Progress | None = None,
) -> Tuned:
    """Find the smallest budget whose retention is at least `keep` percent, with 95 % confidence.

    Without right answers, agreement takes the place of retention. Budgets are tried from the largest down, each on a
    growing sample of the items, until one fails. The result is the smallest that passes together with all larger ones;
    `covist.eval.racing` explains why. With several methods, the one with the smallest budget is chosen, and the
    confidence holds for all of them together.

    keep: the retention to reach, in percent
    methods: names, as in `evaluate`
    budgets: the budgets to try, as in `evaluate`; by default nine between a half and a thirty-sixth of the tokens
    max_budget: leave out larger ones
    suite, limit, model, max_new_tokens, config, progress: as in `evaluate`
    out: a directory for answers, which `tune` and `evaluate` can share
    seed: of the order in which items are answered
    early: decide on a budget as soon as the result is clear; False answers all items, which is slower and can only
        differ by finding a smaller budget in rare cases

    >>> from covist.eval import Item, Question, Suite
    >>> image, question, answer = covist.tiny.demo()
    >>> few = Suite.of("few", [Item.of(image, Question(question, answer))] * 20)
    >>> tuned = covist.eval.tune(80, suite=few, budgets="32")
    >>> str(tuned.setup), tuned.curve[0].verdict.value
    ('covist-fixed 32', 'passes')
    """
    asked = load_suite(suite)
    names, items = check_tuning(keep, methods, asked, limit)
    longest = asked.max_new_tokens if max_new_tokens is None else max_new_tokens
    subject = Subject.resolve(asked.model if model is None else model, longest)
    tokens = round(subject.tokens(items[0]))
    np.random.default_rng(seed).shuffle(items)
    vanilla, *runs = planned_runs(names, read_budgets(budgets or LADDER), tokens, asked.one_size)
    most = None if max_budget is None else Budget.parse(max_budget)
    ladders = [_ladder([run for run in runs if run.method == name], tokens, most) for name in names]
    exhaustive = (1 + sum(map(len, ladders))) * len(items)
    test = _test(keep, asked, items, names)
    with Records(out, answers_identity(asked, subject, longest, Setup.of(config), seed=0)) as records:
        sampler = _Sampler(SuiteAnswerer(subject, asked, items, records, seed=0), vanilla, tokens, exhaustive, progress)
        steps = [step for ladder in ladders for step in race(ladder, test, sampler.sample, early)]
        return _conclude(sampler, test, steps)


def check_tuning(
    keep: float, methods: str | Iterable[str], suite: Suite, limit: int | None = None
) -> tuple[list[str], list[Item]]:
    """Refuse, before any work, what cannot be tuned; returns the methods and the items.

    Few items cannot show much, however well they are answered: the test has the same bound for all models.
    """
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep < 100:
        raise CovistError(f"keep must be a percentage above 0 and below 100, got {keep!r}")
    names = [name for name in method_names(methods) if name != VANILLA]
    if not names:
        raise CovistError("no method to tune; name one that compresses, for example covist-fixed")
    items = suite.items(limit)
    test = _test(keep, suite, items, names)
    if test.best_bound < keep:
        raise CovistError(_too_few(test, suite))
    return names, items


def _test(keep: float, suite: Suite, items: Sequence[Item], methods: Sequence[str]) -> BudgetTest:
    """The test of every budget; all methods share the error."""
    return BudgetTest(keep, questions_asked(items, suite.families), ERROR / len(methods))


def _too_few(test: BudgetTest, suite: Suite) -> str:
    shown = floor(10 * test.best_bound) / 10  # rounded down, so that it is a `keep` that the data can show
    family, few = suite.families[test.scarcest_family], (test.asked[:, test.scarcest_family] > 0).sum()
    scarce = f" ({few} with questions of the family {family})" if few < test.items else ""
    return (
        f"keep={test.keep:g}: {counted(test.items, suite.unit)}{scarce} can show at most {shown:.1f} %, even if no "
        f"answer changes; give about {_two_digits(test.items_needed):,} {suite.unit}s of this kind, or a lower keep"
    )


def _two_digits(count: int) -> int:
    """Rounded up to two digits."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def _ladder(runs: Sequence[Run], tokens: int, max_budget: Budget | None) -> list[Run]:
    """Runs from the largest budget down; shares are compared as counts of `tokens`."""
    most = tokens if max_budget is None else max_budget.count_for(tokens)
    sizes = {run: run.budget.count_for(tokens) + _lack(run) for run in runs}
    falling = sorted((run for run in runs if sizes[run] <= most), key=lambda run: -sizes[run])
    if not falling:
        raise CovistError(f"no budget is at most {max_budget}; give smaller budgets or a larger maximum")
    return falling


def _lack(run: Run) -> float:
    """Sorts adaptive budgets, which may all have the same count, by their levels."""
    return run.budget.level - 1 if isinstance(run.budget, Coverage) else 0.0


class _Sampler:
    """Answers as many items as each look of the race needs.

    tokens: of an item without compression
    exhaustive: items x runs without a race, the total of the progress bar
    """

    def __init__(self, answering: SuiteAnswerer, vanilla: Run, tokens: int, exhaustive: int, progress: Progress | None):
        self.answering, self.vanilla, self.exhaustive, self._progress = answering, vanilla, exhaustive, progress
        self._tokens = tokens
        self.needed: dict[Run, int] = {}  # items by run

    @property
    def items(self) -> Sequence[Item]:
        return self.answering.items

    def sample(self, run: Run, count: int) -> Sample:
        """The answers of a run to the first `count` items."""
        first = self.items[:count]
        for one in (self.vanilla, run):
            self.answering.on(first).answer([one], self._advance(one))
            self.needed[one] = max(self.needed.get(one, 0), count)
        families, records = self.answering.suite.families, self.answering.records
        reference = records.of(self.vanilla)
        own, full = (tally(first, records.of(one), families, reference) for one in (run, self.vanilla))
        return Sample.of(own, full)

    def tokens(self, run: Run, count: int) -> float:
        """The mean number of tokens that a run's budget came to on the first `count` items."""
        if run.budget.says_count:
            return run.budget.count_for(self._tokens)
        answered = self.answering.records.of(run)
        return mean(answered[item.number].cached_tokens for item in self.items[:count])

    def _advance(self, run: Run) -> Progress | None:
        """Progress over the whole race."""
        if self._progress is None:
            return None
        tell, before = self._progress, sum(count for other, count in self.needed.items() if other != run)
        return lambda done, total, name: tell(before + done, self.exhaustive, str(run))

    def report(self, run: Run) -> Report | None:
        """The report of a run on the first item."""
        subject, item = self.answering.subject, self.items[0]
        with compressed(subject.loaded, self.answering.setup_of(run)) as handle:
            subject.answer(item, subject.requests(item)[:1])
        return None if handle is None else handle.report


def _conclude(sampler: _Sampler, test: BudgetTest, steps: Sequence[Step[Run]]) -> Tuned:
    answering = sampler.answering
    by_method = {step.rung.method: [one for one in steps if one.rung.method == step.rung.method] for step in steps}
    passing = [step for own in by_method.values() if (step := smallest_passing(own)) is not None]
    chosen = min(passing, key=lambda step: sampler.tokens(step.rung, step.sample.items), default=None)
    asked = [question for item in sampler.items for question in item.questions]
    return Tuned(
        suite=answering.suite.name,
        keep=test.keep,
        measure=AGREEMENT if all(question.metric == AGREEMENT for question in asked) else "retention",
        unit=answering.suite.unit,
        items=len(sampler.items),
        curve=[Tried.of(step, test) for step in steps],
        setup=None if chosen is None else _setup(answering, test, chosen),
        report=None if chosen is None else sampler.report(chosen.rung),
        best_bound=max(test.best_lower_bound(step.sample) for step in steps),
        unknown=_unknown(answering.suite.families, test, steps),
        answered=sum(sampler.needed.values()),
        exhaustive=sampler.exhaustive,
    )


def _unknown(families: tuple[str, ...], test: BudgetTest, steps: Sequence[Step[Run]]) -> tuple[str, ...]:
    """Families that were asked, in which the uncompressed model has no right answer among all items."""
    seen = max((step.sample for step in steps), key=lambda sample: sample.items)
    if seen.items < test.items:
        return ()
    nothing = (test.asked.sum(0) > 0) & (seen.full.sum(0) == 0)
    return tuple(name for name, has_none in zip(families, nothing, strict=True) if has_none)


def _setup(answering: SuiteAnswerer, test: BudgetTest, chosen: Step[Run]) -> Setup:
    """The chosen budget with everything that its answers depended on."""
    run, settings, loaded = chosen.rung, answering.records.settings, answering.subject.loaded
    setup = answering.setup_of(run)
    origin = {
        "made_by": "covist tune",
        "keep": test.keep,
        "confidence": 1 - ERROR,
        "retention": round(chosen.sample.retention, 2),
        "items": chosen.sample.items,
        **{name: settings[name] for name in ("suite", "suite_version", "model", "clip", "dtype", "max_new_tokens")},
        **tuned_on(loaded.name, loaded.model.config, setup.concentration),
        "versions": versions(),
    }
    return replace(setup, origin=origin, loading=loaded.loading.lasting)


def _row(tried: Tried) -> dict[str, Any]:
    return {
        "method": tried.method,
        "budget": tried.budget.written,
        "items": tried.items,
        "retention": round(tried.retention, 2),
        "ci": [round(end, 2) for end in tried.interval],
        "verdict": tried.verdict.value,
    }


def _saved(report: Report) -> dict[str, Any]:
    """Costs of one prompt before and after compression."""
    return {
        "tokens": [report.tokens, report.mean_tokens],
        "kv_bytes": [report.kv_bytes_uncompressed, report.kv_bytes],
        "flops": [report.flops_uncompressed, report.flops],
    }
