"""`covist run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from covist.cli import options
from covist.cli.console import out, print_json, print_notes, table
from covist.cli.models import Films, budget_notes, certificates, draw, load, question, request
from covist.loading import Loading
from covist.units import milliseconds, number, operations, share, size

if TYPE_CHECKING:
    from covist.api.setup import Setup
    from covist.request.answer import Answer


@options.with_loading
def run(
    *,
    image: options.Images = None,
    video: options.Videos = None,
    frames: options.Frames = 16,
    fps: options.Rate = 2.0,
    prompt: options.Prompt = None,
    model: options.Model = "tiny",
    budget: options.Budget = None,
    strategy: options.StrategyOption = None,
    method: options.MethodOption = None,
    min_coverage: options.MinCoverage = None,
    max_visual_tokens: options.MaxVisualTokens = None,
    config: options.Config = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also run the uncompressed model.")] = False,
    overlay: Annotated[
        Path | None, typer.Option(help="Draw the representatives on the image (PNG, SVG or PDF).", show_default=False)
    ] = None,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    max_new_tokens: options.NewTokens = 128,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Answer a question about images or videos with compressed visual tokens.

    Without arguments, the embedded model answers a question about a bundled
    image. With [bold]--compare[/], the uncompressed model answers too, and the table
    shows the savings.
    """
    from covist.request.answer import ask
    from covist.request.answer import compare as ask_both
    from covist.viz.files import FIGURES, writable_drawing

    chosen = options.setup(config, strategy, method, budget, min_coverage, max_visual_tokens)
    options.refuse_ages(chosen)
    asked = question(image, prompt, Films(video or (), frames, fps), model)
    if overlay is not None:
        writable_drawing(overlay, FIGURES)
    loaded = load(model, clip, loading, chosen)
    chosen = chosen.over(loaded.defaults)
    wanted = (loaded, request(loaded, asked), chosen, max_new_tokens)
    answers = list(ask_both(*wanted)) if compare else [ask(*wanted)]
    if overlay is not None:
        draw(answers[-1], asked, overlay, overlay=True)
    notes = budget_notes(answers[-1], chosen.budget)
    print_notes(notes)
    if as_json:
        _print_json(model, asked.prompt, chosen, answers, notes)
    else:
        _print(asked.prompt, answers, overlay)


def _print_json(model: str, asked: str, chosen: Setup, answers: list[Answer], notes: list[str]) -> None:
    same = answers[0].text == answers[1].text if len(answers) == 2 else None
    about = {"model": model, "prompt": asked, "budget": chosen.to_dict()["budget"], "notes": notes, "same_answer": same}
    print_json({**about, "results": [answer.to_dict() for answer in answers]})


def _print(asked: str, answers: list[Answer], overlay: Path | None) -> None:
    console = out()
    console.print(f"\n[dim]question[/]  [bold]{escape(asked)}[/]")
    console.print(_comparison(*answers) if len(answers) == 2 else _single(answers[0]))
    for line in certificates(answers[-1]):
        console.print(line, highlight=False)
    console.print(f"[dim]{_what_was_timed(answers[-1])}[/]")
    if overlay is not None:
        console.print(f"the representatives are drawn in [bold]{escape(str(overlay))}[/]")


def _single(answer: Answer) -> Table:
    """One answer, with what the uncompressed decoder would have needed (computed, not timed)."""
    report, said = answer.report, f"[bold]{escape(answer.text)}[/]"
    if report is None:
        sides = table("", answer.method)
        sides.add_row("answer", said)
    else:
        sides = table("", "uncompressed", answer.method, "left")
        sides.add_row("answer", "[dim]see --compare[/]", said, "")
        _add_costs(sides, (report.tokens, report.kv_bytes_uncompressed, report.flops_uncompressed), answer)
    for label, seconds in _times(answer).items():
        sides.add_row(label, *([] if report is None else [""]), milliseconds(seconds))
    return sides


def _comparison(vanilla: Answer, answer: Answer) -> Table:
    """Both answers and costs side by side."""
    same = "[green]same[/]" if vanilla.text == answer.text else "[yellow]differs[/]"
    sides = table("", "uncompressed", answer.method, "left")
    sides.add_row("answer", escape(vanilla.text), f"[bold]{escape(answer.text)}[/]", same)
    _add_costs(sides, (vanilla.mean_tokens, vanilla.measurement.kv_bytes, vanilla.flops), answer)
    for label, seconds in _times(vanilla).items():
        after = _times(answer)[label]
        sides.add_row(label, milliseconds(seconds), milliseconds(after), share(after, seconds))
    return sides


def _what_was_timed(answer: Answer) -> str:
    requests = answer.measurement.requests
    if requests > 1:
        return f"times: medians of {requests} requests after a warm-up request"
    return "times of a first request" + ("" if answer.report is None else "; --compare warms up and repeats")


def _add_costs(sides: Table, before: tuple[float, float, float], answer: Answer) -> None:
    tokens, cache, flops = before
    kept = answer.measurement.kv_bytes
    sides.add_row("visual tokens", number(tokens), number(answer.mean_tokens), share(answer.mean_tokens, tokens))
    if answer.mean_cached_tokens != answer.mean_tokens:
        cached = answer.mean_cached_tokens
        sides.add_row("visual tokens in the cache", number(tokens), number(cached), share(cached, tokens))
    sides.add_row("KV cache", size(cache), size(kept), share(kept, cache))
    sides.add_row("prefill FLOPs", operations(flops), operations(answer.flops), share(answer.flops, flops))


def _times(answer: Answer) -> dict[str, float]:
    took = answer.measurement
    return {"time to first token": took.ttft, "decoder prefill": took.prefill, "generation": took.generation}
