"""`covist show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covist.cli import options
from covist.cli.console import out, print_json
from covist.cli.models import load, question, request


def show(
    image: options.Images = None,
    prompt: options.Prompt = None,
    destination: Annotated[Path, typer.Option("--out", help="The figure, PNG or SVG.")] = Path("covist.png"),
    model: options.Model = "tiny",
    budget: options.Budget = "64",
    strategy: options.StrategyOption = None,
    method: options.MethodOption = None,
    which: Annotated[int, typer.Option("--which", min=1, help="Which of several pictures to draw.")] = 1,
    clip: options.Clip = None,
    device: options.Device = "auto",
    max_new_tokens: options.NewTokens = 128,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Draw what was kept of a picture, and why.

    Above: the picture and the evidence maps that decided. Below: the representatives, as discs whose size and colour
    is their weight, with threads to the tokens they stand for; one panel per stage; and the picture rebuilt from them.
    """
    from covist.outputs import writable_file
    from covist.request.answer import ask
    from covist.schedule import resolve_budget

    name = options.method_name(strategy, method)
    resolve_budget(budget, 1)  # an impossible budget is refused before anything is loaded
    pictures, asked = question(image, prompt)
    writable_file(destination, (".png", ".svg"))
    loaded = load(model, clip, device)
    answer = ask(loaded, request(loaded, pictures, asked), name, budget, max_new_tokens)

    from covist.viz import draw_answer, save_figure

    save_figure(draw_answer(answer, pictures, asked, loaded.processor, which - 1), destination)
    if as_json:
        print_json({"model": model, "prompt": asked, "figure": str(destination), "results": [answer.to_dict()]})
    else:
        out().print(f"{escape(asked)} [bold]{escape(answer.text)}[/]")
        out().print(f"{name} at {budget}, drawn in [bold]{escape(str(destination))}[/]")
