"""`evaluate`: methods x budgets on a suite."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

from covist.api.choose import check_setup
from covist.api.setup import Setup
from covist.budget import Ages, Budget, Count, Written, refuse_of_prompt
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.eval.answering import Progress, SuiteAnswerer, answers_identity
from covist.eval.records import Records, Run
from covist.eval.results import Results
from covist.eval.subject import Subject
from covist.eval.suite import Suite, load_suite
from covist.files import parse_json
from covist.methods.create import create_method
from covist.methods.grammar import VANILLA, is_vanilla, split_names
from covist.methods.registry import methods_for_any_model
from covist.outputs import writable_directory


class Summary(Protocol):
    """Results that can be written to a directory."""

    @property
    def images(self) -> int: ...

    def write(self, directory: Path) -> None: ...


R = TypeVar("R", bound=Summary)


def evaluate(
    methods: str | Iterable[str],
    budgets: str | Iterable[Budget | Written],
    *,
    suite: str | Suite = "scenes",
    limit: int | None = None,
    half: str | None = None,
    model: Any = None,
    max_new_tokens: int | None = None,
    config: CovistConfig | Setup | str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Results:
    """Answer a suite with every method at every budget, and with the uncompressed model as the reference.

    methods: names as a list, or as text with commas; `covist methods` lists them.
    budgets: visual tokens per image, as in `covist.compress`. The images of the embedded suites have one size, so a
        share is a count there. A budget of all tokens or more leaves the images uncompressed. `Score.reached` tells
        whether a method can reach its budget.
    suite: a name in `covist.eval.SUITES`, or your own suite: `read_data` reads one from a file, `Suite.of` makes one
        from items.
    limit: use only so many images, the first ones; in the embedded suites they are a fair sample of the whole.
    half: "even" or "odd": use only images with such numbers, to choose on one half and verify on the other.
    model: a name ("tiny", a folder, a hub id), a `LoadedModel`, or a tuple (model, processor, clip); by default the
        embedded model that belongs to the suite.
    max_new_tokens: the longest answer; by default the length of the right answer in the embedded suites, and 64
        tokens in others.
    config: constants of CoViST, or a setup or file with them and a concentration reference, for the methods that read
        them. Without a reference, it is measured on the first images of the suite.
    out: a directory for answers, results.json, results.md and, if matplotlib is installed, retention.png. A second
        call with the same directory continues an interrupted one, and may add methods, budgets or images. The results
        files then cover every run in the directory that is finished for these images; a call with fewer images than
        they already cover does not change them. None writes nothing.
    seed: of the bootstrap and of torch's generator (`random:seed=1` makes that method draw other tokens).
    progress: called with the finished images, all images, and the name of the current run

    >>> results = covist.eval.evaluate("random", "64", limit=2)
    >>> [(score.method, score.mean_tokens) for score in results.scores]
    [('vanilla', 576), ('random', 64.0)]

    Without right answers, the score is the agreement with the uncompressed model:

    >>> from covist.eval import Item, Question, Suite
    >>> image, question, answer = covist.tiny.demo()
    >>> mine = Suite.of("mine", [Item.of(image, Question(question), Question("what color is the circle?"))])
    >>> covist.eval.evaluate("covist-fixed", "64", suite=mine).scores[1].families
    {'agreement': 100.0}
    """
    names, asked = method_names(methods), load_suite(suite)
    if out is not None:
        writable_directory(out)
    items = asked.items(limit, half)
    longest = asked.max_new_tokens if max_new_tokens is None else max_new_tokens
    subject = Subject.resolve(asked.model if model is None else model, longest)
    runs = planned_runs(names, read_budgets(budgets), round(subject.tokens(items[0])), asked.one_size)
    setup = Setup.of(config)
    with Records(out, answers_identity(asked, subject, longest, setup, seed)) as records:
        answering = SuiteAnswerer(subject, asked, items, records, seed)
        build = partial(Results.build, asked, items, records=records, seed=seed)
        return answer_and_summarise(answering, runs, runs[:1], build, out, progress)


def answer_and_summarise(
    answering: SuiteAnswerer,
    runs: list[Run],
    references: list[Run],
    build: Callable[[list[Run]], R],
    out: str | Path | None,
    progress: Progress | None,
) -> R:
    """Answer the runs and return their results, which `build` makes of finished runs.

    The files in `out` cover every run in the directory that is finished, also after an interruption, once the
    `references` are.
    """
    try:
        answering.answer(runs, progress)
    finally:
        finished = [run for run in runs if answering.is_finished(run)]
        if out is not None and set(references) <= set(finished):
            stored = answering.records.runs()
            others = _known([run for run in stored if run not in runs and answering.is_finished(run)])
            _summarise(build([*finished, *others]), Path(out))
    return build(runs)


def _known(runs: list[Run]) -> list[Run]:
    """Runs whose methods can be built here: a script may have registered one that this process does not know."""
    unknown = dict.fromkeys(run.method for run in runs if not _is_known(run.method))
    if unknown:
        names = ", ".join(unknown)
        warnings.warn(f"methods that are not known here are left out of the summary: {names}", stacklevel=3)
    return [run for run in runs if run.method not in unknown]


def _is_known(method: str) -> bool:
    try:
        method_names([method])
    except CovistError:
        return False
    return True


def _summarise(results: Summary, directory: Path) -> None:
    """Write the summary, unless the directory holds one over more images."""
    try:
        covered = int(parse_json((directory / "results.json").read_text(encoding="utf-8"))["images"])
    except (OSError, ValueError, KeyError, TypeError):
        covered = 0
    if covered <= results.images:
        results.write(directory)
    else:
        warnings.warn(
            f"results.json, results.md and retention.png in {directory} cover {covered} images and are not replaced; "
            f"this evaluation has only {results.images}",
            stacklevel=3,
        )


def method_names(methods: str | Iterable[str]) -> list[str]:
    """The single names in a list of methods; a bad name is refused with the reason.

    >>> covist.eval.method_names("covist-pro,vispruner:important=0.75,positions=keep")
    ['covist-pro', 'vispruner:important=0.75,positions=keep']
    """
    names = split_names(methods, list(methods_for_any_model()))
    for name in names:
        if not is_vanilla(name):
            create_method(name)
    return names


def planned_runs(names: list[str], budgets: Iterable[Budget], tokens: int, one_size: bool) -> list[Run]:
    """Vanilla once, as the reference, then every other method at every budget."""
    # For images of one size a share is a count; budgets that look at more than the size are not changed.
    sizes = dict.fromkeys(Count(one.count_for(tokens)) if one_size and one.says_count else one for one in budgets)
    others = [name for name in names if name != VANILLA]
    if others and not sizes:
        raise CovistError("no budget given; name at least one, for example 64")
    check_runs(others, sizes)
    return [Run(VANILLA, Count(tokens)), *(Run(name, size) for name in others for size in sizes)]


def read_budgets(budgets: str | Iterable[Budget | Written]) -> list[Budget]:
    """Budgets of a list, or of text with commas, each once.

    >>> [str(budget) for budget in read_budgets("0.11, 64, 11%")]
    ['11%', '64']
    """
    parts = [part for part in budgets.split(",") if part.strip()] if isinstance(budgets, str) else budgets
    return list(dict.fromkeys(Budget.parse(part) for part in parts))


def check_runs(names: Iterable[str], budgets: Iterable[Budget]) -> None:
    """Refuse budgets that one of the methods does not support."""
    for name, budget in product(names, budgets):
        refuse_of_prompt(budget, "ages are those of turns, and each question here is one turn", Ages)
        check_setup(Setup(name, budget))
