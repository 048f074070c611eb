"""`covist show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covist.cli import options
from covist.cli.console import out, print_json, print_notes
from covist.cli.models import Films, budget_notes, certificates, draw, load, question, request
from covist.cli.streams import draw_stream, film_path, open_stream
from covist.loading import Loading


@options.with_loading
def show(
    *,
    image: options.Images = None,
    video: options.Videos = None,
    frames: options.Frames = 16,
    fps: options.Rate = 2.0,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Add all frames of the video one by one, as a stream; of a file --fps per second."
        ),
    ] = False,
    prompt: options.Prompt = None,
    destination: Annotated[
        Path, typer.Option("--out", help="File for the figure (PNG, SVG, PDF) or interactive page (HTML).")
    ] = Path("covist.png"),
    model: options.Model = "tiny",
    budget: options.Budget = None,
    strategy: options.StrategyOption = None,
    method: options.MethodOption = None,
    min_coverage: options.MinCoverage = None,
    max_visual_tokens: options.MaxVisualTokens = None,
    config: options.Config = None,
    which: Annotated[int, typer.Option("--which", min=1, help="Number of the image or video to draw.")] = 1,
    theme: Annotated[
        options.ThemeName | None,
        typer.Option("--theme", help="The page that a figure is for; by default light, and in HTML as the browser is."),
    ] = None,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    max_new_tokens: options.NewTokens = 128,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Draw what was kept of an image or a video, and why.

    Top: the image and the evidence maps that decided. Bottom: the
    representatives, one panel per stage, and the image rebuilt from them.
    Size and colour of a disc show its weight; lines lead to the tokens that it
    stands for.

    For a video: a film strip with the representatives of every frame, and how
    they and their weight change over time. With --stream: the same of what a
    stream holds after the last frame.
    """
    from covist.request.answer import ask
    from covist.viz.files import FIGURES, writable_drawing

    chosen = options.setup(config, strategy, method, budget, min_coverage, max_visual_tokens)
    options.refuse_ages(chosen)
    if stream:
        path = film_path(image, video, model)
        writable_drawing(destination, FIGURES)
        loaded = load(model, clip, loading, chosen)
        held = open_stream(loaded, budget, chosen.method if strategy or method else None, fps)
        draw_stream(loaded, path, held, destination, prompt, max_new_tokens, theme, as_json)
        return
    asked = question(image, prompt, Films(video or (), frames, fps), model)
    writable_drawing(destination)
    loaded = load(model, clip, loading, chosen)
    chosen = chosen.over(loaded.defaults)
    answer = ask(loaded, request(loaded, asked), chosen, max_new_tokens)
    draw(answer, asked, destination, which - 1, theme=theme)
    notes = budget_notes(answer, chosen.budget)
    print_notes(notes)
    if as_json:
        about = {
            "model": model,
            "prompt": asked.prompt,
            "budget": chosen.to_dict()["budget"],
            "notes": notes,
            "figure": str(destination),
        }
        print_json({**about, "results": [answer.to_dict()]})
    else:
        out().print(f"{escape(asked.prompt)} [bold]{escape(answer.text)}[/]")
        for line in certificates(answer):
            out().print(line, highlight=False)
        out().print(f"{chosen.method} at {chosen.budget}, drawn in [bold]{escape(str(destination))}[/]")
