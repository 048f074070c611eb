"""`covist batch`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from covist.cli import options
from covist.cli.console import INTERRUPTED, note, out, print_json, progress, table
from covist.cli.evaluate import how_to_go_on
from covist.errors import CovistError
from covist.extras import require_extra
from covist.loading import Loading
from covist.units import counted, share, size

if TYPE_CHECKING:
    from covist.api.setup import Setup
    from covist.batch.drivers import Driver
    from covist.batch.tally import JobTally

NOTHING_ANSWERED = 3  # exit code
MOST_REASONS = 5  # of failures, that are printed


class Format(str, Enum):
    parquet = "parquet"
    jsonl = "jsonl"


@options.with_loading
def batch(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Rows (JSON lines, a JSON list, CSV, Parquet, or - for standard input), images, or folders of images.",
        ),
    ],
    *,
    destination: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory for the answers.")],
    prompt: Annotated[str | None, typer.Option(help="Question for rows that have none.", show_default=False)] = None,
    model: options.Model = "tiny",
    budget: options.Budget = None,
    strategy: options.StrategyOption = None,
    method: options.MethodOption = None,
    config: options.Config = None,
    min_coverage: options.MinCoverage = None,
    max_visual_tokens: options.MaxVisualTokens = None,
    concentration: Annotated[
        float | None, typer.Option(help=options.REFERENCE_HELP, show_default="measured on the bundled scenes")
    ] = None,
    max_new_tokens: options.NewTokens = 64,
    batch_size: Annotated[str, typer.Option(help="Rows per batch; `auto` goes by their tokens.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Copies of the model, with --ray.", show_default="one per GPU, or 1")
    ] = None,
    ray: options.Ray = None,
    format: Annotated[Format, typer.Option(help="File format of the answers.")] = Format.parquet,
    part_rows: Annotated[int, typer.Option(min=1, help="Input rows per file of answers (a part).")] = 256,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Answer failed rows again.")] = False,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Answer many rows: files of questions, or images with one question.

    If it stops for any reason, run the same command again to continue.
    Each id is answered once. A part is written in full or not at all.
    A row that cannot be answered gets an `error`; the others are answered.
    If no row can be answered, the exit code is 3.
    """
    if prompt is not None and not prompt.strip():
        raise CovistError("--prompt is empty")
    rows_at_once = _batch_size(batch_size)
    given = options.setup(config, strategy, method, budget, min_coverage, max_visual_tokens)
    chosen = _with_reference(given, concentration)
    _check_ray(ray, workers)
    from covist.batch.job import run, summary
    from covist.batch.manifest import Order
    from covist.batch.spec import WorkerSpec
    from covist.plugins import Plugin

    order = Order(
        input=tuple(source),
        spec=WorkerSpec(
            model=model,
            clip=clip,
            loading=loading.over(chosen.loading),
            setup=chosen,
            max_new_tokens=max_new_tokens,
            prompt=prompt,
            batch_size=rows_at_once,
            plugins=tuple(map(Plugin.of, plugin or ())),
        ),
        format=format.value,
        part_rows=part_rows,
    )
    started = perf_counter()
    try:
        with _driver(ray, workers, order.spec.loading.device or "auto") as driver, progress(rates=True) as advance:
            finished = run(
                order,
                destination,
                driver,
                retry_errors=retry_errors,
                progress=lambda tally, facts: advance(tally.done, tally.rows, _state(tally, facts.kv_bytes_per_token)),
            )
    except KeyboardInterrupt:
        note(how_to_go_on(destination))
        return INTERRUPTED
    totals = summary(order, destination, finished, perf_counter() - started)
    if totals["whole"] and not chosen.is_plain:
        note(_why_whole(totals, chosen))
    if totals["capped"] and chosen.budget is not None:
        from covist.request.budgets import capped_note

        note(capped_note(chosen.budget, totals["capped"], totals["answered"], "row"))
    print_json(totals) if as_json else _print(totals)
    return 0 if finished.tally.answered else NOTHING_ANSWERED


def _with_reference(setup: Setup, concentration: float | None) -> Setup:
    """Add the command line's reference; refuse one for a method that uses none."""
    from covist.api.choose import CallSettings

    call = CallSettings.of(concentration=concentration)
    chosen = call.over(setup)
    if not chosen.is_plain:
        call.build_method(chosen)
    return chosen


def _batch_size(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise CovistError(f"--batch-size {text!r}: give auto or a number of rows, 1 or more")
    return int(text)


def _check_ray(ray: str | None, workers: int | None) -> None:
    if ray is not None:
        require_extra("covist batch --ray", "ray")
    elif workers is not None and workers > 1:
        raise CovistError(
            f"--workers {workers} needs --ray (pip install 'covist[ray]'); without --ray there is one worker"
        )


def _driver(ray: str | None, workers: int | None, device: str) -> AbstractContextManager[Driver]:
    if ray is None:
        from covist.batch.drivers import LocalDriver

        return nullcontext(LocalDriver())
    from covist.cluster.driver import ray_driver

    return ray_driver(ray, workers, device)


def _state(tally: JobTally, kv_bytes_per_token: float) -> str:
    """What the job has saved so far, in a few words."""
    saved = f"{tally.tokens_saved:,.0f} tokens and {size(tally.tokens_saved * kv_bytes_per_token)} of cache saved"
    return f"{saved}, {counted(tally.errors, 'error')}"


def _why_whole(totals: dict[str, Any], setup: Setup) -> str:
    from covist.request.budgets import ALL_TOKENS

    reason = f"{ALL_TOKENS} (budget {totals['budget']})"
    if setup.min_coverage is not None:
        reason += f", and so does a coverage below {setup.min_coverage:g}"
    return f"{totals['whole']:,} of {counted(totals['answered'], 'answer')} without compression: {reason}"


def _print(totals: dict[str, Any]) -> None:
    console = out()
    console.print(
        f"\n[bold]{escape(totals['input'])}[/]: {counted(totals['rows'], 'row')}, {escape(str(totals['method']))}, "
        f"budget {totals['budget']}"
    )
    console.print(_table(totals))
    for words, count in list(totals["reasons"].items())[:MOST_REASONS]:
        console.print(f"[yellow]{count:,} failed[/]: {escape(words)}", soft_wrap=True)
    if len(totals["reasons"]) > MOST_REASONS:
        console.print(f"and for {len(totals['reasons']) - MOST_REASONS} more reasons")
    if totals["errors"]:
        console.print("[yellow]failed rows[/] have an `error`; --retry-errors answers them again")
    console.print(f"the answers are in [bold]{escape(totals['out'])}[/]")


def _table(totals: dict[str, Any]) -> Table:
    made = table("", "")
    made.show_header = False
    made.add_row("answered", f"{totals['answered']:,}")
    made.add_row("errors", f"{totals['errors']:,}")
    if totals["repeated"]:
        made.add_row("repeated rows, answered once", f"{totals['repeated']:,}")
    made.add_row("visual tokens before", f"{totals['tokens_before']:,}")
    if totals["tokens_before"]:
        made.add_row(
            "visual tokens after",
            f"{totals['tokens_after']:,.0f} ({share(totals['tokens_after'], totals['tokens_before'])})",
        )
    made.add_row("KV cache saved", size(totals["kv_bytes_saved"]))
    made.add_row("model time (s)", f"{totals['seconds']:,.1f}")
    if totals["rows_now"]:
        rows, seconds = totals["rows_now"], totals["seconds_now"]
        made.add_row("this run", f"{counted(rows, 'row')} in {seconds:,.1f} s, {rows / seconds:,.1f} rows/s")
    return made
