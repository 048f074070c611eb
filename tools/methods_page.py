"""Write docs/methods.md: everything that the methods say about themselves, and what of the paper is not here.

    python tools/methods_page.py

A test says when the page is out of date. Nothing is typed here:
the registry holds the facts of the methods, docs/results.md what was measured of them, and
`methods/absent.json` the facts of the missing systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from published import DOCS, FIRST, SECOND, retention

from covist.contract.kinds import GOES_BY
from covist.methods.absent import WHY, absent_systems
from covist.methods.catalogue import WHERE, describe, grouped, setting_text
from covist.methods.registry import available_methods

PAGE = DOCS / "methods.md"
BEDS = {FIRST: "first test bed", SECOND: "second"}
COMMAND = "python tools/methods_page.py"
FACTS = {
    "acts": "Acts",
    "signals": "Reads",
    "budget": "Budget",
    "positions": "Positions",
    "licence": "Licence of the original",
    "published": "As published",
    "ours": "Ours",
    "checked": "Checked",
}
INTRODUCTION = """\
# Methods

`covist methods` lists them, `covist methods NAME` says what stands here of one, and `--method NAME` uses it. Groups go
by where tokens are removed, then by what mainly decides which ones stay. *As published* is what the authors' code or
paper says, *Ours* what differs from it or was left open. *Checked* begins with `golden` where outputs of the authors'
code are reproduced, with `reference` where a literal version in our tests is. *Retention* is what it keeps of the
accuracy of two small models, in percent, by tokens kept; [Results](results.md) has intervals, and what these figures
mean.

Settings follow a colon: `--method vispruner:important=0.75`. Every method takes `positions`, whose default is among its
facts: `keep` leaves tokens at their original positions, `reindex` renumbers the shorter sequence."""
MISSING = """\
## In the paper, not here

Systems that the paper compares or cites and that cannot be run here. Numbers of tables are those of the preprint."""


def page() -> str:
    """The whole page. Methods of other packages are left out, so that it is the same wherever it is written."""
    ours = [name for name, method in available_methods().items() if method.__module__.startswith("covist.")]
    groups = grouped(map(describe, ours))
    parts = [f"<!-- Written by `{COMMAND}`, from what the methods say about themselves. -->", INTRODUCTION]
    parts.append(_overview(groups))
    for where, heading in WHERE.items():
        parts.append(f"## {heading.capitalize()}")
        for (place, kind), entries in groups.items():
            if place == where:
                parts.append(f"### By {kind}: {GOES_BY[kind]}")
                parts += (part for entry in entries for part in _section(entry))
    parts += [MISSING, *_missing()]
    return "\n\n".join(parts) + "\n"


def _overview(groups: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    rows = [
        [WHERE[where].removesuffix(" the decoder"), kind, ", ".join(_link(entry["name"]) for entry in entries)]
        for (where, kind), entries in groups.items()
    ]
    return _table(["removes tokens", "goes by", "methods"], rows)


def _link(name: str) -> str:
    return f"[{name}](#{name})" if name in available_methods() else name


def _section(entry: dict[str, Any]) -> Iterator[str]:
    yield f"#### {entry['name']}"
    yield entry["paper"] if entry["paper"] != "none" else "No paper."
    measured = [f"{row} ({bed})" for bed, rows in _measured().items() if (row := rows.get(entry["name"]))]
    facts = {label: entry[fact] for fact, label in FACTS.items()} | {"Retention": "; ".join(measured)}
    yield "\n".join(f"- **{label}.** {fact}" for label, fact in facts.items() if fact)
    own = [setting for setting in entry["settings"] if setting["name"] != "positions"]
    if own:
        rows = [[f"`{setting_text(setting)}`", setting["meaning"]] for setting in own]
        yield _table(["setting and default", "meaning"], rows)


@cache
def _measured() -> dict[str, dict[str, str]]:
    """What docs/results.md says: test bed -> method -> "98.4 at 128, 94.0 at 64", where a budget was reached."""
    return {
        bed: {
            method: ", ".join(f"{found.value} at {budget}" for budget, found in row.items())
            for method, row in retention(heading).items()
        }
        for heading, bed in BEDS.items()
    }


def _missing() -> Iterator[str]:
    yield "\n".join(f"- **{kind}**: {meaning}" for kind, meaning in WHY.items())
    rows = [[one.name, one.venue, one.listed, one.why, one.missing, _link(one.instead)] for one in absent_systems()]
    yield _table(["system", "venue", "in the paper", "why", "what is missing", "comes closest"], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
