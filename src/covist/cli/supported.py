"""`covist models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from covist.cli import options
from covist.cli.console import ACCENT, out, print_json, table

if TYPE_CHECKING:
    from covist.families.catalogue import ModelType


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[TYPE]", help="Describe this model type, class or family.")
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the image-text models of transformers: which of them run, and what is read of them.

    With a model type, describe it in full. Presets are published sizes for
    [bold]covist plan --preset[/] and [bold]covist bench --geometry[/].

    Examples:
    [bold]covist models[/]
    [bold]covist models qwen3_5[/]
    """
    from covist.families.catalogue import model_type_named, model_types

    entries = [model_type_named(name)] if name else model_types()
    if as_json:
        print_json({"models": [entry.to_dict() for entry in entries]})
    elif name is None:
        _print_all(entries)
    else:
        _print_one(entries[0])


def _print_all(entries: list[ModelType]) -> None:
    running = [entry for entry in entries if entry.refusal is None]
    notes = list(dict.fromkeys(entry.note for entry in running if entry.note))
    listed = _left(table("runs", "file", "evidence", "layers", "video", "note"))
    for entry in running:
        note = str(notes.index(entry.note) + 1) if entry.note else ""
        video = "yes" if entry.video else ""
        file = "yes" if entry.runs == "file" else ""
        listed.add_row(f"[{ACCENT}]{entry.model_type}[/]", file, entry.evidence, entry.kinds, video, note)
    refused = _left(table("does not run", "because"))
    for entry in entries:
        if entry.refusal is not None:
            refused.add_row(entry.model_type, escape(entry.refusal))
    console = out()
    console.print(listed)
    for number, note in enumerate(notes, 1):
        console.print(f"[dim]{number}  {note}[/]")
    console.print("[dim]file: a file describes it; the others run by their structure[/]")
    console.print("[dim]evidence: whose attention in the vision tower weighs the tokens[/]")
    console.print("[dim]layers: of the decoder, by the default configuration[/]")
    console.print(refused)
    presets = ", ".join(name for entry in running for name in entry.presets)
    console.print(f"presets for [bold]covist plan[/] and [bold]covist bench[/]: [dim]{presets}[/]\n")
    console.print(f"{len(running)} of {len(entries)} model types run. [bold]covist models TYPE[/] describes one,")
    console.print("[bold]covist doctor --model DIR[/] a checkpoint of yours.")
    console.print("The embedded models need no download: [bold]tiny[/] is a llava, [bold]tiny-next[/] a llava_next,")
    console.print("[bold]tiny-video[/] a llava_onevision.")


def _left(listed: Table) -> Table:
    for column in listed.columns:
        column.justify = "left"
    return listed


def _print_one(entry: ModelType) -> None:
    from covist.families.catalogue import EVIDENCE, UNIFORM, UNREAD, grid_source, readable_layers

    facts = Table.grid(padding=(0, 2))
    rows = {"class": entry.model_class}
    if entry.refusal is not None:
        rows["runs"] = f"no: {entry.refusal}"
    else:
        rows |= {
            "runs": f"yes, described by {', '.join(entry.families)}" if entry.families else "yes, by its structure",
            "evidence": EVIDENCE[entry.evidence]
            + (f" ({UNREAD[entry.model_type]})" if entry.evidence == UNIFORM else ""),
            "grid": grid_source(entry),
            "tokens": entry.tokens,
            "layers": ", ".join(f"{count} {kind}" for kind, count in entry.layers),
            "inside": readable_layers(entry),
            "video": "compressed" if entry.video else "none",
            "presets": ", ".join(entry.presets),
            "note": entry.note,
        }
    for label, value in rows.items():
        if value:
            facts.add_row(f"[dim]{label}[/]", escape(value))
    out().print(f"[bold {ACCENT}]{entry.model_type}[/]")
    out().print(Padding(facts, (0, 0, 0, 2)))
