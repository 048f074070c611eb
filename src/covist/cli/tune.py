"""`covist tune`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from covist.cli import completion, options
from covist.cli.console import INTERRUPTED, note, out, print_json, progress, table, table_of_figures
from covist.cli.evaluate import how_to_go_on
from covist.cli.models import Films, load, suite_of
from covist.loading import Loading
from covist.outputs import back_up
from covist.units import counted, number, operations, share, size

if TYPE_CHECKING:
    from covist.api.report import Report
    from covist.api.setup import Setup
    from covist.eval import Tuned

NONE_SUFFICES = 3  # exit code
_COLOURS = {"passes": "green", "fails": "red"}


@options.with_loading
def tune(
    *,
    keep: Annotated[float, typer.Option(help="Percent of the uncompressed model's scores to keep.")] = 99.0,
    suite: options.Suite = None,
    data: options.Data = None,
    metric: options.Metric = options.MetricName.auto,
    method: Annotated[
        str | None,
        typer.Option(
            help="Methods separated by commas; the smallest budget wins.",
            show_default="covist-fixed",
            autocompletion=completion.several_methods,
        ),
    ] = None,
    budgets: Annotated[
        str | None, typer.Option(help="Budgets to try, separated by commas.", show_default="nine from 50% to 2.8%")
    ] = None,
    max_budget: Annotated[str | None, typer.Option(help="Largest budget to try.", show_default=False)] = None,
    save: Annotated[Path | None, typer.Option(help="File for the result.", show_default="covist.json")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N images.", show_default="all")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help=options.MODEL_HELP, show_default="the suite's own")
    ] = None,
    destination: Annotated[
        Path | None, typer.Option("--out", help="Directory for answers; those of `covist eval` are reused.")
    ] = None,
    config: options.Config = None,
    frames: options.Frames = 16,
    fps: options.Rate = 2.0,
    max_new_tokens: options.AnswerTokens = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of the images.")] = 0,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Find the smallest budget that keeps enough of the score, with 95 % confidence, and save it.

    Budgets are tried from the largest down, each on a growing sample of the
    images, until one fails. The result is saved in covist.json; pass it to other
    commands with [bold]--config[/]. If no budget suffices, nothing is saved and the exit
    code is 3.
    """
    from covist.api.setup import DEFAULT_METHOD, Setup
    from covist.budget import Budget
    from covist.eval import method_names
    from covist.eval import tune as find_budget
    from covist.eval.runner import check_runs, read_budgets
    from covist.eval.tuning import check_tuning
    from covist.outputs import writable_directory, writable_file

    setup = Setup.of(config)  # bad options, and data that cannot suffice, are refused before anything is loaded
    methods = method_names(method or setup.method or DEFAULT_METHOD)
    check_runs(methods, read_budgets(options.split(budgets or "64", "--budgets")))
    most = None if max_budget is None else Budget.parse(max_budget)
    asked = suite_of(suite, data, metric, Films((), frames, fps))
    check_tuning(keep, methods, asked, limit)
    file = writable_file(save or Path("covist.json"), (".json",))
    if destination is not None:
        writable_directory(destination)
    loaded = load(model or asked.model, clip, loading, setup)
    try:
        with progress() as advance:
            tuned = find_budget(
                keep,
                suite=asked,
                methods=methods,
                budgets=budgets,
                max_budget=most,
                limit=limit,
                model=loaded,
                max_new_tokens=max_new_tokens,
                config=setup,
                out=destination,
                seed=seed,
                progress=advance,
            )
    except KeyboardInterrupt:
        note(how_to_go_on(destination))
        return INTERRUPTED
    saved = SavedSetup(None) if tuned.setup is None else save_setup(tuned.setup, file)
    if as_json:
        print_json({**tuned.to_dict(), **saved.to_dict()})
    else:
        _print(tuned, saved)
    return NONE_SUFFICES if tuned.setup is None else 0


@dataclass(frozen=True)
class SavedSetup:
    """Where settings were saved, if they were, and the copy of a file that they replaced."""

    file: Path | None
    before: Path | None = None

    def to_dict(self) -> dict[str, str | None]:
        named = {"file": self.file, "backup": self.before}
        return {name: None if path is None else str(path) for name, path in named.items()}

    def __str__(self) -> str:
        """Where it is and how to use it, as rich markup."""
        name = escape(str(self.file))
        before = "" if self.before is None else f" (the one before is {escape(str(self.before))})"
        return f"saved in [bold]{name}[/]{before}\nto use it: covist run --config {name}"


def save_setup(setup: Setup, file: Path) -> SavedSetup:
    """Save settings; a file with other ones is kept under another name."""
    before = back_up(file)
    setup.save(file)
    if before is not None and before.read_bytes() == file.read_bytes():
        before.unlink()
        before = None
    return SavedSetup(file, before)


def _print(tuned: Tuned, saved: SavedSetup) -> None:
    console = out()
    console.print(f"\n[bold]{escape(tuned.suite)}[/]: keep {tuned.keep:g} % with 95 % confidence")
    console.print(_curve(tuned))
    fewer = 1 - tuned.answered / tuned.exhaustive
    console.print(
        f"[dim]{counted(tuned.answered, 'answer')} about {tuned.unit}s, {100 * fewer:.0f} % fewer than all budgets on "
        f"all {counted(tuned.items, tuned.unit)} would take[/]"
    )
    if tuned.setup is None:
        console.print(_why_none(tuned))
        return
    if tuned.report is not None:
        console.print(_savings(tuned.report))
    console.print(f"[bold]{escape(str(tuned.setup.method))}[/] at a budget of [bold]{tuned.setup.budget}[/], {saved}")


def _curve(tuned: Tuned) -> Table:
    head, rows = tuned.table()
    made = table_of_figures(*head)
    for *figures, verdict in rows:
        made.add_row(*figures, f"[{_COLOURS[verdict]}]{verdict}[/]")
    return made


def _why_none(tuned: Tuned) -> str:
    if tuned.unknown:
        names = escape(", ".join(tuned.unknown))
        return (
            f"[yellow]no budget suffices:[/] the uncompressed model answers no question of {names} right, so there is "
            "nothing to keep; leave these questions out"
        )
    if tuned.best_bound < tuned.keep:
        seen = counted(tuned.items, tuned.unit)
        return (
            f"[yellow]no budget suffices:[/] {seen} can show at most {tuned.best_bound:.1f} %, even if no answer "
            f"changes; give more {tuned.unit}s or a lower --keep"
        )
    return f"[yellow]no budget suffices[/] to keep {tuned.keep:g} %; give larger --budgets or a lower --keep"


def _savings(report: Report) -> Table:
    """The cost of the first prompt, before and after compression."""
    made = table("", "uncompressed", "compressed", "left")
    costs = (
        ("visual tokens", report.tokens, report.mean_tokens, number),
        ("KV cache", report.kv_bytes_uncompressed, report.kv_bytes, size),
        ("prefill FLOPs (Eq. 19)", report.flops_uncompressed, report.flops, operations),
    )
    for name, before, after, text in costs:
        made.add_row(name, text(before), text(after), share(after, before))
    return made
