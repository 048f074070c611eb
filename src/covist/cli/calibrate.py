"""`covist calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from covist.cli import options
from covist.cli.console import note, out, print_json, progress, table
from covist.cli.models import Films, load, suite_of
from covist.cli.tune import SavedSetup, save_setup
from covist.loading import Loading
from covist.units import counted, percent

if TYPE_CHECKING:
    from covist.eval import Calibrated


@options.with_loading
def calibrate(
    *,
    method: Annotated[str, typer.Option(help="Method to calibrate.")] = "fitprune",
    suite: options.Suite = None,
    data: options.Data = None,
    budgets: Annotated[
        str | None, typer.Option(help="Budgets to fit, separated by commas.", show_default="nine from 50% to 2.8%")
    ] = None,
    file: Annotated[Path, typer.Option("--out", help="File for the result.")] = Path("covist.json"),
    limit: Annotated[int, typer.Option(help="Only the first N images.")] = 64,
    model: Annotated[
        str | None, typer.Option("--model", help=options.MODEL_HELP, show_default="the suite's own")
    ] = None,
    frames: options.Frames = 16,
    fps: options.Rate = 2.0,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure how many tokens each decoder layer needs on your images, for methods that use this (FitPrune).

    The data needs no answers. Pass the file to other commands with [bold]--config[/].

    Example: [bold]covist calibrate --data mine.jsonl --model llava-hf/llava-1.5-7b-hf[/]
    """
    from covist.eval import calibrate as measure
    from covist.eval.calibrating import check_calibration
    from covist.outputs import writable_file

    check_calibration(method, budgets)  # bad options are refused before anything is loaded
    asked = suite_of(suite, data, options.MetricName.auto, Films((), frames, fps))
    file = writable_file(file, (".json",))
    loaded = load(model or asked.model, clip, loading)
    with progress() as advance:
        found = measure(method, suite=asked, budgets=budgets, limit=limit, model=loaded, progress=advance)
    if found.unreachable:
        note(
            f"budgets not fitted, because the first layer alone exceeds them: {', '.join(map(str, found.unreachable))}"
        )
    saved = save_setup(found.setup, file)
    if as_json:
        print_json({**found.to_dict(), **saved.to_dict()})
    else:
        _print(found, saved)


def _print(found: Calibrated, saved: SavedSetup) -> None:
    console = out()
    looked = f"{counted(found.items, found.unit)}, {counted(found.examples, 'question')}"
    console.print(f"\n[bold]{escape(found.suite)}[/]: {looked}; % of the tokens that each layer sees")
    layers = len(found.fitted[0].kept)
    shown = sorted({round(part * (layers - 1) / 4) for part in range(5)})
    made = table("K", "alpha", "mean", *(f"layer {layer}" for layer in shown))
    for one in found.fitted:
        shares = (percent(100 * share) for share in (one.mean, *(one.kept[layer] for layer in shown)))
        made.add_row(str(one.budget), f"{one.alpha:.4f}", *shares)
    console.print(made)
    console.print(str(saved))
