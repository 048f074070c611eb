"""`covist methods`, `covist models` and `covist doctor`."""

from __future__ import annotations

from rich.padding import Padding
from rich.table import Table

from covist.cli import options
from covist.cli.console import ACCENT, out, print_json, table


def methods(as_json: options.Json = False, verbose: options.Verbose = False) -> None:
    """List the methods: where they act, what they read, how their budget counts, and whose they are."""
    from covist.methods.catalogue import catalogue

    entries = catalogue()
    if as_json:
        print_json({"methods": entries})
        return
    console = out()
    for entry in entries:
        console.print(f"[bold {ACCENT}]{entry['name']}[/]  [dim]{entry['paper']}[/]")
        facts = Table.grid(padding=(0, 2))
        for label in ("acts", "signals", "budget", "positions"):
            facts.add_row(f"[dim]{label}[/]", entry[label])
        console.print(Padding(facts, (0, 0, 0, 2)))
    console.print(f"\n{len(entries)} methods; use one with [bold]covist run --method NAME[/]")
    console.print(
        "NAME may end in [bold]+csc[/] (CoViST's composition, for methods that only select), [bold]+sca[/] "
        "(its attention) or both: [bold]divprune+csc+sca[/]"
    )


def models(as_json: options.Json = False, verbose: options.Verbose = False) -> None:
    """List the supported model families."""
    from covist.families.registry import available_families

    families = available_families()
    if as_json:
        print_json({"models": [{"family": name, "classes": list(classes)} for name, classes in families.items()]})
        return
    listed = table("family", "transformers classes")
    listed.columns[1].justify = "left"
    for name, classes in families.items():
        listed.add_row(f"[{ACCENT}]{name}[/]", ", ".join(classes))
    out().print(listed)
    out().print("The embedded model [bold]tiny[/] is of the family llava-1.5 and needs no download.")


def doctor(as_json: options.Json = False, verbose: options.Verbose = False) -> int:
    """Check the installation: versions, backends, what is missing and how to get it."""
    from covist.environment import checks, machine

    found = checks()
    healthy = all(check.status != "missing" for check in found)
    if as_json:
        print_json({"healthy": healthy, "checks": [check.to_dict() for check in found], "machine": machine()})
        return 0 if healthy else 1
    styles = {"ok": "green", "optional": "yellow", "missing": "bold red"}
    listed = table("", "", "found", "how to get it")
    for column in listed.columns[1:]:
        column.justify = "left"
    for check in found:
        listed.add_row(f"[{styles[check.status]}]{check.status}[/]", check.name, check.found, check.advice)
    out().print(listed)
    out().print("everything needed is there" if healthy else "[bold red]something is missing[/]")
    return 0 if healthy else 1
