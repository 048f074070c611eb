"""`covist methods`, `covist models` and `covist doctor`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from covist.cli import options
from covist.cli.console import ACCENT, out, print_json, table
from covist.contract.kinds import NEEDS, NO_NEED
from covist.errors import CovistError

FACTS = (
    *("paper", "acts", "criterion", "signals", "needs", "budget", "positions"),
    *("licence", "published", "ours", "checked"),
)
"""What is shown about one method, in this order."""


class Acts(str, Enum):
    """Where a method removes tokens."""

    before = "before"
    inside = "inside"
    both = "both"


def methods(
    name: Annotated[str | None, typer.Argument(help="Describe this method or combination, with its settings.")] = None,
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
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the methods, one per line; with a name, describe that method in full.

    Examples:
    [bold]covist methods --acts inside[/]
    [bold]covist methods --needs none[/]
    [bold]covist methods vispruner[/]
    [bold]covist methods divprune+csc+sca[/]
    """
    from covist.methods.catalogue import catalogue, describe, matching

    if name is not None and (acts, needs, licence) != (None, None, None):
        raise CovistError("give either a name or filters (--acts, --needs, --licence), not both")
    signals = () if needs is None else options.split(needs, "--needs")
    entries = [describe(name)] if name else matching(catalogue(), acts and acts.value, signals, licence)
    if as_json:
        print_json({"methods": entries})
    elif name is None:
        _print_all(entries)
    else:
        _print_one(entries[0])


def _print_all(entries: list[dict[str, Any]]) -> None:
    from covist.methods.catalogue import WHERE, grouped

    listed = table("method", "criterion", "checked", "paper", "")
    for column in listed.columns:
        column.justify, column.no_wrap = "left", True
    listed.columns[3].no_wrap = False  # the only column that may shrink: long titles are cut
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
    console.print("[dim]criterion: what mainly decides which tokens are kept[/]")
    console.print("[dim]checked: against golden outputs of the authors' code, or a literal reference[/]")
    console.print(
        f"{len(entries)} methods. [bold]covist methods NAME[/] describes one; [bold]--method NAME[/] uses it."
    )
    console.print("NAME+csc adds CoViST's composition, NAME+sca its attention, NAME+csc+sca both.")


def _line(entry: dict[str, Any]) -> tuple[str | Text, ...]:
    title, venue = _title_and_venue(entry["paper"])
    short = Text(title, no_wrap=True, overflow="ellipsis")
    return f"[{ACCENT}]{entry['name']}[/]", entry["criterion"] or "-", _kind_of_check(entry), short, f"[dim]{venue}[/]"


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
        if entry[label]:
            facts.add_row(f"[dim]{label.replace('_', ' ')}[/]", escape(entry[label]))
    console.print(Padding(facts, (0, 0, 0, 2)))
    settings = table("setting", "meaning")
    settings.columns[1].justify = "left"
    for setting in entry["settings"]:
        settings.add_row(setting_text(setting), escape(setting["meaning"]))
    console.print(settings)
    example = setting_text(next(setting for setting in entry["settings"] if setting["default"] is not None))
    console.print(f"settings follow a colon: [bold]--method {entry['name']}:{example}[/]")


def models(
    everything: Annotated[
        bool, typer.Option("--all", help="Also list the transformers models that covist does not support, and why.")
    ] = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the supported model families: encoder signal, visual tokens, video, presets.

    Presets are published sizes for [bold]covist plan --preset[/] and [bold]covist bench --geometry[/].
    """
    from covist.families.catalogue import catalogue, refused

    entries, others = catalogue(), refused() if everything else []
    if as_json:
        print_json({"models": entries, **({"refused": others} if everything else {})})
        return
    for entry in entries:
        _print_family(entry)
    out().print(
        "The embedded models need no download: [bold]tiny[/] belongs to the family llava-1.5, "
        "[bold]tiny-next[/] to llava-next."
    )
    if everything:
        _print_refused(others)


def _print_family(entry: dict[str, Any]) -> None:
    facts = Table.grid(padding=(0, 2))
    rows = {
        "classes": ", ".join(entry["classes"]),
        "signal": entry["signal"],
        "tokens": entry["tokens"],
        "video": entry["video"],
        "presets": ", ".join(entry["presets"]),
    }
    for label, value in rows.items():
        if value:
            facts.add_row(f"[dim]{label}[/]", escape(value))
    out().print(f"[bold {ACCENT}]{entry['family']}[/]")
    out().print(Padding(facts, (0, 0, 0, 2)))


def _print_refused(entries: list[dict[str, str]]) -> None:
    listed = table("not supported", "because")
    for column in listed.columns:
        column.justify = "left"
    listed.columns[0].no_wrap = True
    for entry in entries:
        listed.add_row(entry["model_type"], escape(entry["reason"]))
    out().print(listed)


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Also check whether a model is supported (a folder or a Hugging Face id), by its configuration.",
            show_default=False,
        ),
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Check the installation: versions, backends, what is missing and how to install it."""
    from covist.environment import checks, machine

    found = checks(model)
    healthy = all(check.status != "missing" for check in found)
    if as_json:
        print_json({"healthy": healthy, "checks": [check.to_dict() for check in found], "machine": machine()})
        return 0 if healthy else 1
    styles = {"ok": "green", "optional": "yellow", "missing": "bold red"}
    listed = table("", "", "found", "advice")
    for column in listed.columns[1:]:
        column.justify = "left"
    for check in found:
        words = map(escape, (check.name, check.found, check.advice))
        listed.add_row(f"[{styles[check.status]}]{check.status}[/]", *words)
    out().print(listed)
    out().print("everything that covist needs is there" if healthy else "[bold red]something is missing[/]")
    return 0 if healthy else 1
