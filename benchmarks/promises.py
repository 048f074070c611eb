"""Whether the statistics hold what they promise, on simulated answers whose truth is known.

    python benchmarks/promises.py [--runs 2000]

Three tables: how often `covist tune` accepts a budget that keeps too little, and one that keeps enough; how often
95 % intervals hold the truth; how often a table of methods that are all alike has a difference that is "clear".
Nothing is loaded or answered: a run is a drawn sample.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from covist.eval.comparing import holm, sign_flip
from covist.eval.racing import BudgetTest, Sample, Verdict, race
from covist.eval.statistics import Estimate, Tally, accuracy, contributions, difference, retention
from covist.eval.tables import markdown_table

DRAWS, EXCHANGES = 999, 499  # fewer than by default, to be fast: both tests count them
BELOW = 1e-6  # a budget whose loss is this much too large is where a test errs most


@dataclass(frozen=True)
class Design:
    """Data to tune on.

    items: the number of items of each family, if every item has one question
    together: questions about each item, one of every family, which are all lost together
    vanilla, gained: the share of right answers without compression, and of wrong ones that a budget corrects
    """

    items: tuple[int, ...]
    together: int = 0
    vanilla: float = 1.0
    gained: float = 0.0

    def __str__(self) -> str:
        name = " + ".join(map(str, self.items))
        name += f" items of {self.together} questions, lost together" if self.together else ""
        return name + (f", {100 * self.vanilla:.0f} % right uncompressed" if self.vanilla < 1 else "")

    @cached_property
    def asked(self) -> np.ndarray:
        """Questions, [items, families]."""
        if self.together:
            return np.ones((*self.items, self.together))
        return np.repeat(np.eye(len(self.items)), self.items, axis=0)

    def losses(self, loss: float, where: str) -> np.ndarray:
        """How often each family loses a right answer, so that `loss` is the loss of retention; nan if none can be."""
        families = self.asked.shape[1]
        by_family = np.zeros(families)
        by_family[-1 if where == "smallest" else slice(None)] = loss * families if where == "smallest" else loss
        by_family += self.gained * (1 - self.vanilla) / self.vanilla
        return by_family if by_family.max() <= 1 else np.full(families, np.nan)


@dataclass
class Trial:
    """Runs of the race for a single budget, the true loss of which is `loss` percentage points of retention.

    where: "smallest": only the last family loses answers; "everywhere": all lose alike
    """

    design: Design
    keep: float
    loss: float
    where: str
    known: dict[tuple[bytes, bytes], Verdict] = field(default_factory=dict)  # most samples come again

    def accepted(self, runs: int, seed: int = 0) -> float:
        """The share of runs that accept the budget; nan if there is no such loss."""
        rng = np.random.default_rng(seed)
        rates = self.design.losses(self.loss / 100, self.where)
        return float(np.mean([self._accepts(rng, rates) for _ in range(runs)])) if not np.isnan(rates).any() else np.nan

    def _accepts(self, rng: np.random.Generator, rates: np.ndarray) -> bool:
        asked = rng.permutation(self.design.asked)
        full = asked * (rng.random(asked.shape) < self.design.vanilla)
        drawn = rng.random((len(asked), 1) if self.design.together else asked.shape)
        gained = (asked - full) * (rng.random(asked.shape) < self.design.gained)
        right = full * (drawn >= rates) + gained
        test = BudgetTest(self.keep, asked, draws=DRAWS)
        test.judge = partial(self._remembered, test, test.judge)
        (step,) = race([0], test, lambda _, count: Sample(right[:count], full[:count]))
        return step.verdict is Verdict.PASSES

    def _remembered(self, test: BudgetTest, judge: Callable[[Sample], Verdict], sample: Sample) -> Verdict:
        seen = np.hstack([sample.rows, test.asked[: sample.items]])
        rows, counts = np.unique(seen, axis=0, return_counts=True)
        key = rows.tobytes(), counts.tobytes()
        if key not in self.known:
            self.known[key] = judge(sample)
        return self.known[key]


DESIGNS = (
    Design((200, 200)),
    Design((380, 20)),
    Design((390, 10)),
    Design((395, 5)),
    Design((2000, 40)),
    Design((400,)),
    Design((60,)),
    Design((12,)),
    Design((20,) * 8),
    Design((160,), together=8),
    Design((100, 40), vanilla=0.6, gained=0.2),
)


def false_acceptance(runs: int, keeps: Sequence[float] = (80.0, 90.0, 95.0)) -> str:
    """How often a budget that keeps a hair too little is accepted: one that loses in the last family, or in all."""
    rows = []
    for design in DESIGNS:
        found = [
            [Trial(design, keep, 100 - keep + BELOW, where).accepted(runs) for where in ("smallest", "everywhere")]
            for keep in keeps
        ]
        rows.append([str(design), *map(_listed, found)])
    return markdown_table(["data", *(f"keep {keep:g}" for keep in keeps)], rows)


def power(runs: int, keep: float = 90.0, truths: Sequence[float] = (92.0, 94.0, 96.0, 98.0, 100.0)) -> str:
    """How often a budget that keeps enough is accepted, by what it keeps of every family."""
    head = ["data", "can show at most", *(f"keeps {truth:g}" for truth in truths)]
    rows = []
    for design in DESIGNS:
        full = design.asked * design.vanilla
        best = BudgetTest(keep, design.asked).best_lower_bound(Sample(full, full))
        found = (_percent(Trial(design, keep, 100 - truth, "everywhere").accepted(runs)) for truth in truths)
        rows.append([str(design), f"{best:.1f}", *found])
    return markdown_table(head, rows)


@dataclass(frozen=True)
class Answers:
    """Answers to questions of `families` families about every image.

    lost, gained: the share of vanilla's right answers that are lost, and of its wrong ones that are gained
    alike: how far the answers about one image share their fate, from 0 to 1
    rare: whether only every tenth image has a question of the last family, and the others none of it
    """

    families: int
    lost: float
    vanilla: float = 0.95
    gained: float = 0.0
    alike: float = 0.3
    rare: bool = False

    def __str__(self) -> str:
        words = [f"{self.families} question{'s' * (self.families > 1)} per image", f"{100 * self.lost:.0f} % lost"]
        words += [f"{100 * self.gained:.0f} % gained"] if self.gained else []
        words += ["lost together"] if self.alike > 0.5 else []
        words += ["one family rare"] if self.rare else []
        return ", ".join(words)

    def draw(self, rng: np.random.Generator, images: int, methods: int) -> tuple[Tally, list[Tally]]:
        """The tallies of vanilla and of methods that are all alike."""
        from scipy.stats import norm

        asked = np.ones((images, self.families))
        if self.rare:
            asked[np.arange(images) % 10 != 0, -1] = 0
        full = asked * (rng.random(asked.shape) < self.vanilla)
        common, found = rng.normal(size=(images, 1)), []
        for _ in range(methods):
            hardness = np.sqrt(self.alike) * common + np.sqrt(1 - self.alike) * rng.normal(size=asked.shape)
            gained = (asked - full) * (rng.random(asked.shape) < self.gained)
            found.append(Tally(full * (hardness > norm.ppf(self.lost)) + gained, asked))
        return Tally(full, asked), found

    @property
    def truth(self) -> dict[str, float]:
        kept = 1 - self.lost + self.gained * (1 - self.vanilla) / self.vanilla
        return {"accuracy": 100 * kept * self.vanilla, "retention": 100 * kept, "difference": 0.0}


ANSWERS = (
    Answers(1, 0.3),
    Answers(1, 0.03),
    Answers(8, 0.1),
    Answers(8, 0.01),
    Answers(8, 0.01, alike=0.8),
    Answers(8, 0.05, vanilla=0.8, gained=0.2),
    Answers(4, 0.1, rare=True),
)
FIGURES = ("accuracy", "retention", "difference")


def covered(answers: Answers, images: int, runs: int, seed: int = 0) -> dict[str, float]:
    """How often the interval of each figure holds the truth."""
    rng, held = np.random.default_rng(seed), dict.fromkeys(FIGURES, 0)
    for _ in range(runs):
        vanilla, (one, other) = answers.draw(rng, images, 2)
        found: list[Estimate] = [accuracy(one), retention(one, vanilla), difference(one, other, vanilla)]
        for name, (_, (low, high)) in zip(FIGURES, found, strict=True):
            held[name] += low - 1e-9 <= answers.truth[name] <= high + 1e-9
    return {name: count / runs for name, count in held.items()}


def coverage(runs: int, sizes: Sequence[int] = (10, 30, 100)) -> str:
    """How often 95 % intervals hold the truth, by the number of images."""
    rows = []
    for answers in ANSWERS:
        by_size = [covered(answers, images, runs) for images in sizes]
        rows.append([str(answers), *(_listed([found[name] for found in by_size]) for name in FIGURES)])
    return markdown_table(["answers", *FIGURES], rows)


def false_alarm(answers: Answers, images: int, runs: int, methods: int = 6, seed: int = 0) -> tuple[float, float]:
    """Without a floor: the share of differences that are clear, and of tables with one that is after the correction.

    None of the methods differs from another; all are compared with the first.
    """
    rng, clear, tables = np.random.default_rng(seed), 0, 0
    for _ in range(runs):
        vanilla, (first, *others) = answers.draw(rng, images, methods)
        p = [sign_flip(contributions(one, first, vanilla), EXCHANGES) for one in others]
        clear += sum(value <= 0.05 for value in p)
        tables += any(value <= 0.05 for value in holm(p))
    return clear / runs / (methods - 1), tables / runs


def false_alarms(runs: int, sizes: Sequence[int] = (6, 8, 12, 24, 30, 100)) -> str:
    """How often methods that are all alike differ clearly, in tables of five comparisons."""
    head = ["answers", *(f"{images} images" for images in sizes)]
    rows = []
    for answers in (Answers(1, 0.3), Answers(8, 0.1), Answers(8, 0.01), Answers(4, 0.1, rare=True)):
        found = [false_alarm(answers, images, runs) for images in sizes]
        rows.append([str(answers), *map(_listed, found)])
    return markdown_table(head, rows)


def _listed(shares: Iterable[float]) -> str:
    return ", ".join(map(_percent, shares))


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    print(
        "Budgets below --keep that tune accepts, in percent of the runs; it promises at most 5. First those that lose"
    )
    print("answers of the last family only, then those that lose answers of all.\n")
    print(false_acceptance(runs), "\n")
    print("Budgets that keep enough and are accepted, in percent of the runs, with --keep 90.\n")
    print(power(max(1, runs // 4)), "\n")
    print("95 % intervals that hold the truth, in percent of the runs: with 10, 30 and 100 images.\n")
    print(coverage(max(1, runs // 2)), "\n")
    print(
        "Differences that are clear, and tables with one that is after Holm's correction, in percent; none is real.\n"
    )
    print(false_alarms(max(1, runs // 4)))


if __name__ == "__main__":
    main()
