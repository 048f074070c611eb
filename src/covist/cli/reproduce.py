"""`covist reproduce`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from covist.cli import completion, options
from covist.cli.console import INTERRUPTED, note, out, print_json, say, table_of_figures
from covist.errors import CovistError
from covist.loading import Loading

if TYPE_CHECKING:
    from covist.reproduce import Comparison, Efficiency, Job
    from covist.reproduce.sheet import ResultSheet

FAILED = 1  # exit code
NAME = 16  # letters of a method's name that stay on one line in a narrow terminal


@options.with_loading
def reproduce(
    *,
    table: Annotated[
        str,
        typer.Option(
            help="main, 13b, next, qwen, components or efficiency; appendix: fixed, fixed-p, layers, layers-p or after;"
            " scenes for the embedded model.",
            autocompletion=completion.a_table,
        ),
    ] = "main",
    results: Annotated[Path, typer.Option(help="Directory of the results, with a folder for each run.")] = Path(
        "reproduced"
    ),
    limit: Annotated[
        int | None, typer.Option(help="Only the first N questions of each task.", show_default="all")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run what is missing; continues after a stop.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print only the commands that are still to run, for a shell.")
    ] = False,
    methods: Annotated[
        str | None, typer.Option(help="Only rows of these methods, by covist's names.", show_default="all")
    ] = None,
    budgets: Annotated[str | None, typer.Option(help="Only rows at these budgets.", show_default="all")] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Only these tasks: gqa, mmb, mme, pope, ...", show_default="all")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Folder or hub id, if not the paper's model.", show_default=False),
    ] = None,
    clip: options.Clip = None,
    loading: Loading,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size of lmms-eval.")] = 1,
    launcher: Annotated[
        str, typer.Option(help="Starts lmms-eval: `accelerate launch -m lmms_eval`, ...")
    ] = "lmms-eval",
    destination: Annotated[
        Path | None,
        typer.Option("--out", help="Write the table: .md, .tex, .json, .png, .svg or .pdf.", show_default=False),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Show a table of the paper with your results beside its figures, and run what is missing.

    Lines marked [bold]paper[/] show the paper's figures.
    Lines marked [bold]here[/] show results of lmms-eval in the directory [bold]--results[/].
    [bold]--run[/] produces the missing ones, one after another; [bold]--commands[/] prints how.
    """
    from covist.reproduce import Settings, open_table
    from covist.reproduce.drawing import check_destination, save

    settings = Settings(results, limit, batch_size, _words(launcher), model, clip, loading)
    only = {"methods": _items(methods, "--methods"), "budgets": _counts(budgets), "tasks": _items(tasks, "--tasks")}
    beside = open_table(table, settings, **only)
    if destination is not None:
        check_destination(destination)
    failures: list[str] = []
    if run:
        try:
            ended = _run(beside)
        except KeyboardInterrupt:
            note(f"finished runs are in {results}; the same command continues from there")
            return INTERRUPTED
        beside = open_table(table, settings, **only)
        failures = _failures(ended, beside)
    for problem in [*beside.problems, *failures]:
        note(problem)
    if destination is not None:
        save(beside.sheet(), beside.to_dict(), destination)
    if as_json:
        print_json(beside.to_dict())
    elif commands:
        _print_commands(beside)
    else:
        _print(beside)
    return FAILED if failures else 0


def _words(launcher: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(launcher))
    except ValueError as error:  # a quotation mark without its partner
        raise CovistError(f"--launcher {launcher}: {str(error).lower()}") from None


def _items(text: str | None, option: str) -> list[str] | None:
    return None if text is None else options.split(text, option)


def _counts(text: str | None) -> list[int] | None:
    items = _items(text, "--budgets")
    if items is not None and not all(item.isdecimal() for item in items):
        raise CovistError(f"--budgets {text}: give counts of the table, separated by commas")
    return None if items is None else [int(item) for item in items]


def _run(beside: Comparison | Efficiency) -> list[tuple[Job, int]]:
    """Run what is missing; returns every job with its exit code."""
    from covist.reproduce.running import check_programs, run_job

    jobs = [job for job in beside.jobs if not job.is_finished]
    check_programs(jobs)
    ended = []
    for number, job in enumerate(jobs, 1):
        say(f"[dim]{number} of {len(jobs)}[/]  {escape(job.name)}")
        ended.append((job, run_job(job)))
    return ended


def _failures(ended: list[tuple[Job, int]], beside: Comparison | Efficiency) -> list[str]:
    """What went wrong: jobs that ended with an error or left no results."""
    from covist.reproduce.running import failure

    finished = {job.name for job in beside.jobs if job.is_finished}
    said = (failure(job, code, job.name in finished) for job, code in ended)
    return [text for text in said if text is not None]


def _print(beside: Comparison | Efficiency) -> None:
    console = out()
    sheet = beside.sheet()
    console.print(f"\n[bold]{escape(sheet.title)}[/]")
    if sheet.lines:
        console.print(f"[dim]{escape(sheet.legend)}[/]")
        _print_table(sheet)
    else:
        console.print("no results yet")
    for text in sheet.notes:
        console.print(f"[yellow]note:[/] {escape(text)}")
    jobs = beside.jobs
    missing = [job for job in jobs if not job.is_finished]
    if missing:
        to_run = f"{len(missing)} of {len(jobs)}"
        console.print(f"\n[bold]Still to run:[/] {to_run}. --run runs them, --commands prints their commands.")
    else:
        console.print("\nEvery run of this table is finished.")


def _table(sheet: ResultSheet) -> Table:
    made = table_of_figures(*sheet.head)
    made.columns[1].justify = made.columns[2].justify = "left"
    block = sheet.lines[0].block
    for line, row in zip(sheet.lines, sheet.rows, strict=True):
        if line.block != block:
            made.add_section()
        block = line.block
        name = f"[bold]{escape(row[0])}[/]" if line.is_covist else escape(row[0])
        made.add_row(name, *map(escape, row[1:]), style="dim" if line.origin == "paper" else "cyan")
    return made


def _print_table(sheet: ResultSheet) -> None:
    console = out()
    console.width = max(console.width, _least_width(sheet))
    console.print(_table(sheet))


def _least_width(sheet: ResultSheet) -> int:
    """Room for every figure: a narrower terminal must not cut digits off."""
    name, *others = (max(map(len, column)) for column in zip(sheet.head, *sheet.rows, strict=True))
    return min(name, NAME) + sum(others) + 2 * len(others) + 2


def _print_commands(beside: Comparison | Efficiency) -> None:
    """One line for each missing run, never wrapped, so that it can be pasted or piped into a shell."""
    console = out()
    missing = [job for job in beside.jobs if not job.is_finished]
    results = beside.settings.results
    if missing and not results.is_dir():
        console.print(shlex.join(["mkdir", "-p", str(results)]), soft_wrap=True, markup=False)
    for job in missing:
        console.print(f"# {job.name}", job.line, sep="\n", soft_wrap=True, markup=False)
