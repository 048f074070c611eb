"""`covist eval`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from covist.cli import completion, options
from covist.cli.console import INTERRUPTED, note, out, print_json, print_notes, progress, table_of_figures
from covist.cli.models import Films, load, suite_of
from covist.cli.photos import PHOTOS, photos_of, print_photos
from covist.loading import Loading

if TYPE_CHECKING:
    from covist.eval import Results

WIDE = 92  # columns of a terminal that has room for the share of same answers


class Half(str, Enum):
    even = "even"
    odd = "odd"


METHODS, BUDGETS = "covist-fixed,covist-pro,random,downsample", "192,128,64,32"


@options.with_loading
def evaluate(
    *,
    suite: options.Suite = None,
    data: options.Data = None,
    metric: options.Metric = options.MetricName.auto,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods separated by commas, or `all`; vanilla always runs. Settings: covist-fixed:content=off.",
            show_default=METHODS,
            autocompletion=completion.several_methods,
        ),
    ] = None,
    budgets: Annotated[str | None, typer.Option(help=options.BUDGETS_HELP, show_default=BUDGETS)] = None,
    config: options.Config = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N images.", show_default="all")] = None,
    half: Annotated[
        Half | None, typer.Option(help="Only every second image: choose on one half, verify on the other.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help=options.MODEL_HELP, show_default="the suite's own")
    ] = None,
    destination: Annotated[
        Path | None,
        typer.Option("--out", help="Directory for answers, JSON, Markdown and plot; give it again to continue."),
    ] = None,
    frames: options.Frames = 16,
    fps: options.Rate = 2.0,
    max_new_tokens: options.AnswerTokens = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap and of random methods.")] = 0,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Score methods on held-out images or your own data: accuracy, and the share R of it that compression retains.

    [bold]--data mine.jsonl[/] has one question per line, as JSON: image, question, and
    an answer if one is known. Without answers, methods are scored by how closely
    the model's answers match those without compression.

    [bold]--suite photos --data FOLDER[/] scores captions that people wrote: FOLDER holds
    captions.txt (image,caption) and images. Without --half odd, on the development images.
    With a file as above, it scores answers beside those without an image.

    To continue an interrupted run, give the same [bold]--out[/] again.
    The summary there covers every method and budget in the directory.
    A run over fewer images does not replace it.
    """
    from covist.api.setup import Setup
    from covist.eval import evaluate as run_suite
    from covist.eval import method_names
    from covist.eval.photos import evaluate_photos
    from covist.eval.runner import check_runs, read_budgets
    from covist.outputs import writable_directory

    setup = Setup.of(config)
    methods = setup.method or METHODS if methods is None else methods
    budgets = str(setup.budget or BUDGETS) if budgets is None else budgets
    names = method_names(methods)  # a bad name, suite or budget is refused before anything is loaded
    check_runs(names, read_budgets(options.split(budgets, "--budgets")))
    with_photos = suite == PHOTOS
    asked = photos_of(data, metric, model) if with_photos else suite_of(suite, data, metric, Films((), frames, fps))
    if destination is not None:
        writable_directory(destination)
    loaded = load(model or asked.model, clip, loading, setup)
    run: Any = evaluate_photos if with_photos else run_suite
    try:
        with progress() as advance:
            results = run(
                methods,
                budgets,
                suite=asked,
                limit=limit,
                half=None if half is None else half.value,
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
    print_notes(results.notes)
    if as_json:
        print_json(results.to_dict())
    elif with_photos:
        print_photos(results, destination)
    else:
        _print(results, destination)
    return 0


def how_to_go_on(destination: Path | None) -> str:
    if destination is None:
        return "nothing was saved; with --out DIR, the same command continues an interrupted run"
    return f"finished work is in {destination}; the same command with --out {destination} continues from there"


def _print(results: Results, destination: Path | None) -> None:
    console = out()
    console.print(f"\n[bold]{escape(results.suite)}[/]: {results.about}")
    console.print(_scores(results))
    if results.differences:
        _print_differences(results)
    if destination is not None:
        plot = " and plot" if (destination / "retention.png").exists() else ""
        console.print(f"answers, tables{plot} in [bold]{escape(str(destination))}[/]")


def _scores(results: Results) -> Table:
    from covist.eval.tables import MIXED_TIMES, score_table

    head, rows = score_table(results, same=out().width >= WIDE)
    made = table_of_figures(*head)
    retention = head.index(results.measure)
    for score, row in zip(results.scores, rows, strict=True):
        styles = ("bold", "") if score.reached else ("dim", "yellow")
        kept = map(Text, row[retention : retention + 2], styles)
        made.add_row(*row[:retention], *kept, *row[retention + 2 :])
    if any(score.times_mixed for score in results.scores):
        made.caption = MIXED_TIMES
        made.caption_justify = "left"
    return made


def _print_differences(results: Results) -> None:
    from covist.eval.tables import correction_note, difference_table

    head, rows = difference_table(results)
    made = table_of_figures(*head)
    for row in rows:
        made.add_row(*row)
    out().print(made)
    out().print(f"[dim]{correction_note(results)}[/]")
