"""`covist methods`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from covist.cli import completion, options
from covist.cli.console import ACCENT, out, print_json, table
from covist.contract.kinds import NEEDS, NO_NEED
from covist.errors import CovistError

FACTS = (
    *("row", "paper", "made_for", "acts", "criterion", "signals", "needs", "budget", "positions"),
    *("licence", "published", "ours", "checked"),
)
"""What is shown about one method, in this order."""


class Acts(str, Enum):
    """Where a method removes tokens."""

    before = "before"
    inside = "inside"
    both = "both"


class MadeFor(str, Enum):
    """What a method was published for."""

    image = "image"
    video = "video"


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Describe this method or combination, with its settings.", autocompletion=completion.one_method
        ),
    ] = None,
    acts: Annotated[
        Acts | None,
        typer.Option(
            "--acts", help="Only methods that act before the decoder, inside it, or both.", show_default=False
        ),
    ] = None,
    needs: Annotated[
        str | None,
        typer.Option(
            "--needs",
            metavar="SIGNALS",
            help=f"Only methods that read all of these, separated by commas: {', '.join(NEEDS)}; or {NO_NEED} of them.",
            show_default=False,
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence", help="Only methods whose authors' code has this licence: MIT, apache, ...", show_default=False
        ),
    ] = None,
    made_for: Annotated[
        MadeFor | None,
        typer.Option(
            "--for", help="Only methods made for images, or for videos; every method takes both.", show_default=False
        ),
    ] = None,
    plugin: options.Plugins = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the methods, one per line; with a name, describe that method in full.

    Examples:
    [bold]covist methods --acts inside[/]
    [bold]covist methods --needs none[/]
    [bold]covist methods --for video[/]
    [bold]covist methods vispruner[/]
    [bold]covist methods divprune+csc+sca[/]
    """
    from covist.methods.catalogue import catalogue, describe, matching

    if name is not None and (acts, needs, licence, made_for) != (None, None, None, None):
        raise CovistError("give either a name or filters (--acts, --needs, --licence, --for), not both")
    signals = () if needs is None else options.split(needs, "--needs")
    filters = (acts and acts.value, signals, licence, made_for and made_for.value)
    entries = [describe(name)] if name else matching(catalogue(), *filters)
    if as_json:
        print_json({"methods": entries})
    elif name is None:
        _print_all(entries)
    else:
        _print_one(entries[0])


def _print_all(entries: list[dict[str, Any]]) -> None:
    from covist.methods.catalogue import WHERE, grouped

    listed = table("method", "for", "criterion", "checked", "paper", "")
    for column in listed.columns:
        column.justify, column.no_wrap = "left", True
    listed.columns[4].no_wrap = False  # the only column that may shrink: long titles are cut
    groups = grouped(entries)
    for where, heading in WHERE.items():
        own = [entry for (place, _), group in groups.items() if place == where for entry in group]
        if own:
            listed.add_section()
            listed.add_row(f"[bold]{heading.removesuffix(' the decoder')}[/]")
        for entry in own:
            listed.add_row(*_line(entry))
    console = out()
    console.print(listed)
    console.print("[dim]before, inside: where tokens are removed, relative to the decoder[/]")
    console.print("[dim]for: images or videos; every method takes both[/]")
    console.print("[dim]criterion: what mainly decides which tokens are kept[/]")
    console.print("[dim]checked: against golden outputs of the authors' code, or a literal reference[/]")
    console.print(
        f"{len(entries)} methods. [bold]covist methods NAME[/] describes one; [bold]--method NAME[/] uses it."
    )
    console.print("NAME+csc adds CoViST's composition, NAME+sca its attention, NAME+csc+sca both.")


def _line(entry: dict[str, Any]) -> tuple[str | Text, ...]:
    title, venue = _title_and_venue(entry["paper"])
    short = Text(title, no_wrap=True, overflow="ellipsis")
    facts = entry["made_for"], entry["criterion"] or "-", _kind_of_check(entry)
    return f"[{ACCENT}]{entry['name']}[/]", *facts, short, f"[dim]{venue}[/]"


def _kind_of_check(entry: dict[str, Any]) -> str:
    """The word before the colon in `checked`."""
    return escape(entry["checked"].partition(":")[0]) or "-"


def _title_and_venue(paper: str) -> tuple[str, str]:
    title, bracket, venue = paper.rpartition(" (")
    return (title, venue.removesuffix(")")) if bracket else (paper, "")


def _print_one(entry: dict[str, Any]) -> None:
    from covist.methods.catalogue import setting_text

    console = out()
    console.print(f"[bold {ACCENT}]{entry['name']}[/]")
    facts = Table.grid(padding=(0, 2))
    entry = {**entry, "needs": ", ".join(entry["needs"] or ())}
    for label in FACTS:
        if entry.get(label):
            facts.add_row(f"[dim]{label.replace('_', ' ')}[/]", escape(entry[label]))
    console.print(Padding(facts, (0, 0, 0, 2)))
    settings = table("setting", "meaning")
    settings.columns[1].justify = "left"
    for setting in entry["settings"]:
        settings.add_row(setting_text(setting), escape(setting["meaning"]))
    console.print(settings)
    example = setting_text(next(setting for setting in entry["settings"] if setting["default"] is not None))
    console.print(f"settings follow a colon: [bold]--method {entry['name']}:{example}[/]")
