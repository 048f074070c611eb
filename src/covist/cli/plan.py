"""`covist plan`."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from covist.cli import completion, options
from covist.cli.console import note, out, print_json, print_notes, table
from covist.errors import CovistError
from covist.units import counted, number, operations, share, size

if TYPE_CHECKING:
    from covist.budget import Budget
    from covist.plan import Geometry, Plan

PRESET = "llava-1.5-7b"


def plan(
    budget: options.Budget = None,
    strategy: options.StrategyOption = None,
    method: options.MethodOption = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Model size; `covist models` lists the presets.",
            show_default=PRESET,
            autocompletion=completion.a_preset,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A checkpoint instead: a folder with its config.json, or a Hugging Face id."),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Decoder layers, if not those of the model.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Visual tokens per image, if not those of the model.")] = None,
    markers: Annotated[
        int | None,
        typer.Option("--markers", "--newlines", help="Marker tokens of the image (newlines), which every layer keeps."),
    ] = None,
    text: Annotated[float, typer.Option(help="Text tokens in the prompt; may be fractional, for a mean.")] = 64.0,
    plugin: options.Plugins = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show how many visual tokens each decoder layer sees, and what that costs.

    No weights are read. Examples:
    [bold]covist plan --preset llava-next-7b --budget 160 --strategy pro[/]
    [bold]covist plan --model checkpoint --budget 25%[/]
    [bold]covist plan --method priortr:counts=nominal[/]
    """
    from covist.api.choose import check_budget_of
    from covist.api.setup import Setup
    from covist.budget import Budget, Coverage, refuse_of_prompt
    from covist.methods.create import create_method
    from covist.plan import plan_of
    from covist.request.budgets import distinct_notes, reach_of

    name = options.method_name(strategy, method)
    chosen = create_method(name)
    if preset is not None and model is not None:
        raise CovistError("give either --preset or --model, not both")
    geometry, usual = _published(preset or PRESET) if model is None else _checkpoint(model, tokens)
    wanted = usual if budget is None else Budget.parse(budget)
    check_budget_of(chosen, Setup(name, wanted))
    refuse_of_prompt(wanted, "this plan is for one image")
    sizes = {"layers": layers, "tokens": tokens, "markers": markers}
    made = plan_of(name, chosen.schedule, geometry, wanted, text=text, **sizes)
    if isinstance(wanted, Coverage):
        least, most = wanted.bounds(made.tokens)
        note(f"an image's tokens are known only once it is seen: {least} to {most} here; this plan is for {most}")
    else:
        means = made.schedule.mean, made.schedule.cached_mean
        print_notes(distinct_notes([reach_of(name, wanted, made.budget, made.tokens, *means)]))
    if as_json:
        print_json(made.to_dict())
    else:
        _print(made)


def _published(preset: str) -> tuple[Geometry, Budget]:
    """A published size and its default budget."""
    from covist.families.registry import default_budget, geometry_named

    return geometry_named(preset), default_budget(preset)


def _checkpoint(model: str, tokens: int | None) -> tuple[Geometry, Budget]:
    """The size of a checkpoint and its default budget; says which image the plan is for."""
    from covist.request.inspection import planned_checkpoint

    found = planned_checkpoint(model, tokens)
    if found.image:
        size_of_image = counted(found.geometry.tokens, "token")
        note(f"planned for an image of {size_of_image} ({found.image}); --tokens plans for another")
    return found.geometry, found.budget


def _print(made: Plan) -> None:
    console = out()
    schedule = made.schedule
    console.print(
        f"[bold]{made.geometry}[/], {escape(made.method)}, budget {made.budget} of {made.tokens} visual tokens, "
        f"{made.text:g} text tokens" + (f", {made.markers} markers" if made.markers else "")
    )
    stages = table("layers", "visual tokens")
    for count, group in groupby(range(schedule.layers), key=schedule.tokens_per_layer.__getitem__):
        first, *others = group
        stages.add_row(f"{first}-{others[-1]}" if others else str(first), str(count))
    stages.add_row("[dim]layer mean[/]", f"[dim]{schedule.mean:g}[/]")
    if schedule.cached_mean != schedule.mean:
        stages.add_row("[dim]cached, layer mean[/]", f"[dim]{schedule.cached_mean:g}[/]")
    console.print(stages)
    if len(made.layer_kinds) > 1:
        console.print("layers: " + ", ".join(f"{count} {kind}" for kind, count in made.layer_kinds))
    costs = table("", "uncompressed", "compressed", "left")
    costs.add_row(
        "visual tokens per layer", number(made.tokens), number(schedule.mean), share(schedule.mean, made.tokens)
    )
    costs.add_row(
        "prefill FLOPs",
        operations(made.flops_uncompressed),
        operations(made.flops),
        share(made.flops, made.flops_uncompressed),
    )
    costs.add_row(
        "KV cache (fp16)",
        size(made.kv_bytes_uncompressed),
        size(made.kv_bytes),
        share(made.kv_bytes, made.kv_bytes_uncompressed),
    )
    console.print(costs)
