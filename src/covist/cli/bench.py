"""`covist bench`."""

from __future__ import annotations

from enum import Enum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from covist.cli import completion, options
from covist.cli.console import INTERRUPTED, out, print_json, print_notes, progress, table_of_figures
from covist.cli.models import Films, load, question
from covist.errors import CovistError
from covist.loading import Loading
from covist.units import counted, number, operations

if TYPE_CHECKING:
    from covist.bench.protocol import Bench


class Cache(str, Enum):
    dynamic = "dynamic"
    static = "static"


@options.with_loading
def bench(
    *,
    model: options.Model = "tiny",
    geometry: Annotated[
        str | None,
        typer.Option(
            help="Use a random-weight model of this preset; `covist models` lists the presets.",
            autocompletion=completion.a_preset,
        ),
    ] = None,
    scale: Annotated[float, typer.Option(help="Width of the random-weight model; 1 is full size.")] = 0.1,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods separated by commas, or `all`.",
            show_default="covist-fixed,covist-pro",
            autocompletion=completion.several_methods,
        ),
    ] = None,
    budgets: Annotated[str | None, typer.Option(help=options.BUDGETS_HELP, show_default=options.DEFAULT_BUDGET)] = None,
    config: options.Config = None,
    image: options.Images = None,
    video: options.Videos = None,
    frames: options.Frames = 16,
    fps: options.Rate = 2.0,
    prompt: options.Prompt = None,
    prompts: Annotated[int, typer.Option(min=1, help="Timed requests per repetition (paper: 100).")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Untimed requests before the timed ones (paper: 10).")] = 2,
    repetitions: Annotated[int, typer.Option(min=1, help="How often the timed requests are repeated.")] = 3,
    text: Annotated[int, typer.Option(min=2, help="Text tokens per request to a random-weight model.")] = 62,
    cache: Annotated[
        Cache, typer.Option(help="Keys in a cache that grows, or in one of fixed size (methods before the decoder).")
    ] = Cache.dynamic,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the decoding steps over a static cache, during the warm-up.")
    ] = False,
    destination: Annotated[
        Path | None, typer.Option("--out", help="Directory for bench.json.", show_default=False)
    ] = None,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    max_new_tokens: Annotated[int, typer.Option(min=1, help=options.LONGEST_HELP)] = 16,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Measure the cost of answering: time to first token, prefill, generation, memory, cache, FLOPs.

    Follows the paper's protocol: warm-up, repetitions, greedy decoding,
    batch size 1. Speed-ups are relative to the uncompressed model. Prefill is
    also compared with the plain decoder on a prompt of the compressed length,
    which no method can beat.
    """
    from covist.api.setup import Setup
    from covist.bench.protocol import Bench, configurations, default_budgets
    from covist.bench.workloads import Volume, geometry_workload, image_workload, scene_workload
    from covist.methods.grammar import split_names
    from covist.methods.registry import methods_for_any_model
    from covist.outputs import writable_directory, write_json
    from covist.request.budgets import distinct_notes
    from covist.request.decoding import static_cache

    setup = Setup.of(config)
    if compiled and (cache is Cache.dynamic or not warmup):
        raise CovistError("--compile needs --cache static, and a warm-up in which to compile")
    names = methods or setup.method or ("covist-fixed,covist-pro" if cache is Cache.dynamic else "covist-fixed")
    own = default_budgets(geometry) if setup.budget is None else [setup.budget]
    wanted = own if budgets is None else options.split(budgets, "--budgets")
    plan = configurations(split_names(names, list(methods_for_any_model())), wanted, setup)
    if destination is not None:
        writable_directory(destination)
    volume = Volume(prompts, warmup, max_new_tokens)
    if geometry is not None:
        how = loading.over(setup.loading)
        if how != Loading(device=how.device):
            raise CovistError(
                "--geometry makes a model of random weights; of the options for loading it takes --device"
            )
        workload = geometry_workload(geometry, scale, text, volume, how.device or "auto")
    elif model == "tiny" and image is None and video is None and prompt is None:
        workload = scene_workload(load(model, clip, loading, setup), volume)
    else:
        asked = question(image, prompt, Films(video or (), frames, fps), model)
        workload = image_workload(load(model, clip, loading, setup), asked.images, asked.prompt, volume, asked.videos)
    run = Bench(workload, plan, repetitions, static_cache(compiled) if cache is Cache.static else None)
    print_notes(distinct_notes(run.reaches()))
    interrupted = _run_with_progress(run)
    results = {**run.results(), "complete": not interrupted}
    if destination is not None:
        write_json(destination / "bench.json", results)
    if as_json:
        print_json(results)
    else:
        _print(results)
    return INTERRUPTED if interrupted else 0


def _run_with_progress(run: Bench) -> bool:
    """Run with a progress bar; returns True if the user interrupted it, which keeps what is finished."""
    finished = count(1)
    with progress() as advance:
        advance(0, run.steps, "warm-up")
        try:
            run.run(lambda name: advance(next(finished), run.steps, name))
        except KeyboardInterrupt:
            return True
    return False


def _print(results: dict[str, Any]) -> None:
    console = out()
    protocol, machine = results["protocol"], results["machine"]
    console.print(
        f"\n[bold]{escape(results['workload'])}[/]  [dim]{counted(protocol['prompts'], 'prompt')} x "
        f"{protocol['repetitions']}, {protocol['warmup']} warm-up, {protocol['dtype']}, {protocol['attention']}, "
        f"{protocol['cache']} cache{', compiled steps' if protocol['compiled'] else ''}[/]"
    )
    console.print(
        f"[dim]{machine['processor']}, {machine['threads']} threads, {machine['accelerator'] or 'no accelerator'}[/]"
    )
    console.print(_latency(results["results"]))
    console.print(_resources(results["results"]))
    if not results["complete"]:
        console.print("[yellow]interrupted: the figures cover only what was finished[/]")


def _latency(rows: list[dict[str, Any]]) -> Table:
    made = table_of_figures("method", "K", "TTFT", "prefill", "generation", "speed-up", "token/s", "over plain")
    for row in rows:
        over = row["prefill_over_plain"]
        made.add_row(
            row["method"],
            str(row["budget"] or "all"),
            *(_mean_and_median(row[name]) for name in ("ttft_ms", "prefill_ms", "generation_ms")),
            _mean_and_median(row["speedup"], ".2f", "x"),
            f"{row['tokens_per_second']:.1f}",
            "" if over is None else f"{over:.2f}x",
        )
    made.caption = "milliseconds: mean above median; over plain: prefill / plain decoder at that length"
    made.caption_justify = "left"
    return made


def _resources(rows: list[dict[str, Any]]) -> Table:
    apart = any(row["mean_cached_tokens"] != row["mean_tokens"] for row in rows)
    tokens = ["tokens", "cached"] if apart else ["tokens"]
    made = table_of_figures("method", "K", *tokens, "FLOPs", "KV MiB", "peak MiB", "select ms", "all ms")
    for row in rows:
        made.add_row(
            row["method"],
            str(row["budget"] or "all"),
            number(row["mean_tokens"]),
            *([number(row["mean_cached_tokens"])] if apart else []),
            operations(row["flops"]),
            f"{row['kv_mib']:.2f}",
            "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}",
            *(f"{row[name]['median']:.1f}" if row[name] else "" for name in ("selection_ms", "compression_ms")),
        )
    made.caption = "select: choosing tokens; all: everything that compression adds to a request (medians)"
    made.caption_justify = "left"
    return made


def _mean_and_median(figures: dict[str, float] | None, digits: str = ".1f", unit: str = "") -> str:
    if figures is None:
        return ""
    return f"{figures['mean']:{digits}}{unit}\n[dim]{figures['median']:{digits}}{unit}[/]"
