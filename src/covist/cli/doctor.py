"""`covist doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from covist.cli import options
from covist.cli.console import out, print_json, table
from covist.units import share

if TYPE_CHECKING:
    from covist.environment import Check
    from covist.request.inspection import Inspection

COSTS = ("FLOPs", "cache")


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Also look at a model (a folder or a Hugging Face id): whether it runs, what is read of it, how many "
            "tokens its images have and what budgets save. Reads no weights.",
            show_default=False,
        ),
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Check the installation: versions, backends, what is missing and how to install it."""
    from covist.environment import checks, machine
    from covist.request.inspection import inspect_checkpoint

    found = checks(model)
    healthy = all(check.status != "missing" for check in found)
    inspection = None if model is None or not healthy else inspect_checkpoint(model)
    if as_json:
        facts = {} if inspection is None else {"model": inspection.to_dict()}
        print_json({"healthy": healthy, "checks": [check.to_dict() for check in found], **facts, "machine": machine()})
        return 0 if healthy else 1
    _print_checks(found)
    if inspection is not None:
        _print_model(inspection)
    out().print("everything that covist needs is there" if healthy else "[bold red]something is missing[/]")
    return 0 if healthy else 1


def _print_checks(found: list[Check]) -> None:
    styles = {"ok": "green", "optional": "yellow", "missing": "bold red"}
    listed = table("", "", "found", "advice")
    for column in listed.columns[1:]:
        column.justify = "left"
    for check in found:
        words = map(escape, (check.name, check.found, check.advice))
        listed.add_row(f"[{styles[check.status]}]{check.status}[/]", *words)
    out().print(listed)


def _print_model(inspection: Inspection) -> None:
    from covist.families.catalogue import EVIDENCE
    from covist.request.inspection import BUDGETS

    console = out()
    layers = ", ".join(f"{count} {kind}" for kind, count in inspection.layers)
    console.print(f"[bold]{inspection.model_class}[/] ({inspection.model_type}), family {inspection.family}")
    console.print(f"[dim]evidence[/]  {EVIDENCE[inspection.evidence]}")
    console.print(f"[dim]layers[/]    {layers}")
    console.print(f"[dim]tokens[/]    by {inspection.counted_by}")
    if not inspection.images:
        return
    left = table("image", "tokens", *(f"{cost}, {budget}" for budget in BUDGETS for cost in COSTS))
    for image in inspection.images:
        shares = [share(part, 1) for budget in BUDGETS for part in image.left[budget]]
        left.add_row(image.image, f"{image.tokens:,}", *shares)
    console.print(left)
    console.print("[dim]left of prefill FLOPs and KV cache at two budgets, with 64 text tokens[/]")
