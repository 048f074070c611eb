"""`evaluate`: methods x budgets on a suite."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

import torch

from covist import __version__
from covist.api.handle import Compression
from covist.contract.stages import ImageReport
from covist.errors import CovistError
from covist.eval.records import Answered, Records, Run
from covist.eval.results import Results
from covist.eval.subject import Subject
from covist.eval.suite import Item, Suite, load_suite
from covist.methods.create import create_method
from covist.methods.grammar import VANILLA, is_vanilla, split_names
from covist.methods.registry import available_methods
from covist.request.answer import compressed
from covist.schedule import check_budget, resolve_budget

Progress = Callable[[int, int, str], None]
"""Called with (finished images, all images, the run at work), over all runs."""


def evaluate(
    methods: str | Iterable[str],
    budgets: str | Iterable[int | float | str],
    *,
    suite: str | Suite = "scenes",
    limit: int | None = None,
    model: Any = None,
    max_new_tokens: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Results:
    """Answer a suite with every method at every budget, and with the uncompressed model as the reference.

    methods: names as a list or as text with commas; `covist.methods.grammar` says which there are.
    budgets: visual tokens per image, as `covist.compress` takes them; the embedded suites' images are of one size, so
        that a share is a count there. A budget of all tokens or more leaves the images uncompressed. `Score.reached`
        says whether a method can reach its budget.
    suite: a name of `covist.eval.SUITES`, or a suite of your own: from a file by `read_data`, or of items that are at
        hand by `Suite.of`.
    limit: use only the first images of the suite (each has one question per family at most).
    model: a name ("tiny", a folder, a hub id), a `LoadedModel`, or a tuple (model, processor, clip); by default the
        embedded model that the suite was made for.
    max_new_tokens: the longest answer; by default there is room for the right answer in the embedded suites, and for
        64 tokens in others.
    out: a directory for answers, results.json, results.md and retention.png. A second call with the same directory
        continues what was interrupted, and may name more methods, budgets or images. The three results files then
        cover every run of the directory that is finished for these images; a call with fewer images than they
        already cover leaves them alone. None writes nothing.
    seed: of the bootstrap and of torch's generator (`random:seed=1` makes that method draw other tokens).

    >>> results = covist.eval.evaluate("random", "64", limit=2)
    >>> [(score.method, score.mean_tokens) for score in results.scores]
    [('vanilla', 576), ('random', 64.0)]

    Without right answers, how far the compressed model says the same as the uncompressed one:

    >>> from covist.eval import Item, Question, Suite
    >>> image, question, answer = covist.tiny.demo()
    >>> mine = Suite.of("mine", [Item.of(image, Question(question), Question("what color is the circle?"))])
    >>> covist.eval.evaluate("covist-fixed", "64", suite=mine).scores[1].families
    {'agreement': 100.0}
    """
    names, asked = method_names(methods), load_suite(suite)
    items = asked.items(limit)
    longest = asked.max_new_tokens if max_new_tokens is None else max_new_tokens
    subject = Subject.resolve(asked.model if model is None else model, longest)
    runs = _runs(names, budgets, round(subject.tokens(items[0])), asked.one_size)
    records = Records(out, _identity(asked, subject, longest, seed))
    evaluation = _Evaluation(subject, asked, items, records, seed)
    try:
        evaluation.answer(runs, progress)
    finally:
        # Also when interrupted: what is finished stays, with its figures.
        finished = [run for run in runs if evaluation.is_finished(run)]
        results = Results.build(asked, items, finished, records, seed)
        if out is not None and runs[0] in finished:
            others = [run for run in records.runs() if run not in runs and evaluation.is_finished(run)]
            _summarise(Results.build(asked, items, [*finished, *others], records, seed), Path(out))
    return results


def _identity(suite: Suite, subject: Subject, max_new_tokens: int | None, seed: int) -> dict[str, Any]:
    """What must be the same for all answers in a directory."""
    return {
        "covist": __version__,
        "suite": suite.name,
        "suite_version": suite.fingerprint(),
        **subject.identity,
        "max_new_tokens": max_new_tokens or "right answer",
        "seed": seed,
        "concentration": None,
    }


def _summarise(results: Results, directory: Path) -> None:
    """Write the summary, unless the directory holds one over more images."""
    try:
        covered = json.loads((directory / "results.json").read_text(encoding="utf-8"))["images"]
    except (OSError, ValueError, KeyError):
        covered = 0
    if covered <= results.images:
        results.write(directory)
    else:
        warnings.warn(
            f"results.json, results.md and retention.png in {directory} cover {covered} images and stay as they are; "
            f"this evaluation has {results.images}",
            stacklevel=3,
        )


def method_names(methods: str | Iterable[str]) -> list[str]:
    """The names of methods to evaluate; a bad one is refused before the work begins.

    >>> covist.eval.method_names("covist-pro,vispruner:important=0.75,positions=keep")
    ['covist-pro', 'vispruner:important=0.75,positions=keep']
    """
    names = split_names(methods, list(available_methods()))
    for name in names:
        if not is_vanilla(name):
            create_method(name)
    return names


def _runs(names: list[str], budgets: str | Iterable[int | float | str], tokens: int, one_size: bool) -> list[Run]:
    """Vanilla once, as the reference, then every other method at every budget."""
    parts = [part for part in budgets.split(",") if part.strip()] if isinstance(budgets, str) else list(budgets)
    sizes = dict.fromkeys(resolve_budget(part, tokens) if one_size else written_budget(part) for part in parts)
    others = [name for name in names if name != VANILLA]
    if others and not sizes:
        raise CovistError("no budget given; name at least one, for example 64")
    return [Run(VANILLA, tokens), *(Run(name, size) for name in others for size in sizes)]


def written_budget(budget: int | float | str) -> int | str:
    """A budget in one of two spellings, a count (64) or a share ("11%"); what is neither is refused.

    >>> written_budget("0.11"), written_budget(64)
    ('11%', 64)
    """
    check_budget(budget)
    text = str(budget).strip()
    if text.isdigit():
        return int(text)
    return text if text.endswith("%") else f"{100 * float(text):g}%"


class _Evaluation:
    """Answers what the records do not hold yet."""

    def __init__(self, subject: Subject, suite: Suite, items: list[Item], records: Records, seed: int):
        self.subject, self.suite, self.items, self.records, self.seed = subject, suite, items, records, seed

    def is_finished(self, run: Run) -> bool:
        return all(item.number in self.records.of(run) for item in self.items)

    def answer(self, runs: list[Run], progress: Progress | None) -> None:
        open_items = {run: [item for item in self.items if item.number not in self.records.of(run)] for run in runs}
        total = len(runs) * len(self.items)
        done = total - sum(map(len, open_items.values()))
        for run, items in open_items.items():
            with self._compressed(run) if items else nullcontext() as handle:
                for item in items:
                    if progress:
                        progress(done, total, str(run))
                    self.records.add(run, self._answer(item, run, handle))
                    done += 1
        if progress:
            progress(done, total, "finished")

    def _compressed(self, run: Run) -> AbstractContextManager[Compression | None]:
        tracks = not run.is_vanilla and create_method(run.method).tracker is not None
        return compressed(self.subject.loaded, run, concentration=self._concentration() if tracks else None)

    def _concentration(self) -> float:
        if self.records.settings["concentration"] is None:
            self.records.settle("concentration", round(self.subject.concentration(self.suite), 6))
        return self.records.settings["concentration"]

    def _answer(self, item: Item, run: Run, handle: Compression | None) -> Answered:
        # Seeded per image, so that an interrupted run draws the same as an uninterrupted one.
        torch.manual_seed(self.seed * self.suite.size + item.number)
        ready = self.subject.requests(item)
        started = perf_counter()
        said = self.subject.answer(item, ready)
        seconds = perf_counter() - started
        report = None if handle is None else handle.report
        tokens = self.subject.tokens(item) if report is None else report.mean_tokens
        cached = tokens if report is None else report.mean_cached_tokens
        target = tokens if report is None else mean(_target(run.budget, image) for image in report.visuals)
        return Answered(
            item.number,
            said.texts,
            round(seconds, 4),
            tokens,
            self.records.sitting,
            cached=None if cached == tokens else cached,
            target=None if target == run.budget else target,
            written=said.tokens,
        )


def _target(budget: int | str, image: ImageReport) -> int:
    """The tokens that a budget allows an image or a video."""
    return resolve_budget(budget, image.tokens, image.frames)
