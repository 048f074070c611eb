"""`covist vllm-args`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from covist.cli import options
from covist.cli.console import note, out, print_json


def vllm_args(
    model: options.Model = "tiny",
    budget: options.Budget = None,
    method: options.MethodOption = None,
    config: options.Config = None,
    concentration: Annotated[
        float | None,
        typer.Option(help=options.REFERENCE_HELP, show_default=False),
    ] = None,
    instruction: Annotated[
        bool,
        typer.Option("--instruction", help="Also use the question: images are then encoded again for every question."),
    ] = False,
    clip: Annotated[
        str | None,
        typer.Option(help="CLIP checkpoint of the vision tower, to compare question and image.", show_default=False),
    ] = None,
    columns: Annotated[
        int | None,
        typer.Option(help="Extra dimensions per attention head, for the bias.", show_default="the fewest that fit"),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Print the command that serves a model in vLLM with compression (needs covist\\[vllm] where it runs).

    Example: [bold]covist vllm-args --model llava-hf/llava-1.5-7b-hf --budget 64[/]
    """
    from covist.api.setup import Setup
    from covist.vllm.command import serve_command

    chosen = options.setup(config, None, method, budget)
    if method is None and Setup.of(config).method is None:
        chosen = replace(chosen, method=None)  # which one is usual depends on the model
    if concentration is not None:
        chosen = replace(chosen, concentration=concentration)
    command = serve_command(model, chosen, instruction=instruction, clip=clip, columns=columns)
    if command.needs_reference:
        note(
            "without a concentration reference every image counts as average; measure one with "
            "covist concentration --model MODEL --images FOLDER --save covist.json, then add --config covist.json"
        )
    if as_json:
        print_json(command.to_dict())
    else:
        out().print(command.line(), soft_wrap=True, markup=False)
