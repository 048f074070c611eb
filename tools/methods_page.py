"""Write docs/methods.md: every registered method, and the systems of the paper that are missing; and a table in
docs/video.md: the methods that were made for videos.

    python tools/methods_page.py

A test fails if a page is out of date. The facts come from the registry of methods, the measured figures from
docs/results-tables.md, and the missing systems from `methods/absent.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from covist.contract.kinds import CRITERIA
from covist.methods.absent import WHY, absent_systems
from covist.methods.catalogue import WHERE, describe, grouped, matching, setting_text
from covist.methods.registry import available_methods
from published import DOCS, FIRST, SECOND, retention

PAGE = DOCS / "methods.md"
VIDEO_PAGE = DOCS / "video.md"
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

`covist methods` lists the methods, `covist methods NAME` shows the entry of one, and `--method NAME` uses it. They are
grouped by where they remove tokens, then by what mainly decides which ones are kept. *As published* is what the
authors' code or paper says, *Ours* what differs from it or was left open. *Checked* begins with `golden` if outputs of
the authors' code are reproduced, with `reference` if a literal version in our tests is. *Retention* is the share of the
accuracy of two small models that the method keeps, in percent, by tokens kept;
[Tables of results](results-tables.md) has intervals, and explains these figures.

All methods take images and videos; those that were made for [videos](video.md#methods-made-for-videos) say so.
Settings follow a colon: `--method vispruner:important=0.75`. Every method accepts `positions`; its default is listed
with its facts: `keep` leaves tokens at their original positions, `reindex` renumbers the shorter sequence."""
MISSING = """\
## In the paper, not here

Systems that the paper compares or cites but that cannot be run here. Table numbers are those of the preprint."""


def page() -> str:
    """The whole page, without methods of other packages, so that it is the same on every machine."""
    groups = grouped(map(describe, _ours()))
    parts = [f"<!-- Written by `{COMMAND}`, from the registry of methods. -->", INTRODUCTION]
    parts.append(_overview(groups))
    for where, heading in WHERE.items():
        parts.append(f"## {heading.capitalize()}")
        for (place, kind), entries in groups.items():
            if place == where:
                parts.append(f"### By {kind}: {CRITERIA[kind]}")
                parts += (part for entry in entries for part in _section(entry))
    parts += [MISSING, *_missing()]
    return "\n\n".join(parts) + "\n"


def video_page(text: str) -> str:
    """The page about videos with the table as it is now; the rest of its `text` is written by hand."""
    begin, end = f"<!-- Table written by `{COMMAND}`. -->", "<!-- End of the table. -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "".join([before, begin, "\n\n", _video_table(), "\n\n", end, after])


def _video_table() -> str:
    rows = []
    for entry in matching([describe(name) for name in _ours()], made_for="video"):
        _, _, venue = entry["paper"].rstrip(")").rpartition(" (")
        does = "merges" if available_methods()[entry["name"]].writes_content else "selects"
        name = f"[{entry['name']}](methods.md#{entry['name']})"
        rows.append([name, venue, does, entry["criterion"], entry["acts"], entry["positions"]])
    return _table(["method", "published", "tokens", "criterion", "acts", "positions"], rows)


def _ours() -> list[str]:
    return [name for name, method in available_methods().items() if method.__module__.startswith("covist.")]


def _overview(groups: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    rows = [
        [WHERE[where].removesuffix(" the decoder"), kind, ", ".join(_link(entry["name"]) for entry in entries)]
        for (where, kind), entries in groups.items()
    ]
    return _table(["removes tokens", "criterion", "methods"], rows)


def _link(name: str) -> str:
    return f"[{name}](#{name})" if name in available_methods() else name


def _section(entry: dict[str, Any]) -> Iterator[str]:
    yield f"#### {entry['name']}"
    yield entry["paper"] if entry["paper"] != "none" else "No paper."
    measured = [f"{row} ({bed})" for bed, rows in _measured().items() if (row := rows.get(entry["name"]))]
    made_for = "videos" if entry["made_for"] == "video" else ""
    facts = {label: entry[fact] for fact, label in FACTS.items()}
    facts = {"Made for": made_for, **facts, "Retention": "; ".join(measured)}
    yield "\n".join(f"- **{label}.** {fact}" for label, fact in facts.items() if fact)
    own = [setting for setting in entry["settings"] if setting["name"] != "positions"]
    if own:
        rows = [[f"`{setting_text(setting)}`", setting["meaning"]] for setting in own]
        yield _table(["setting and default", "meaning"], rows)


@cache
def _measured() -> dict[str, dict[str, str]]:
    """Figures of docs/results-tables.md: bed -> method -> "98.4 at 128, 94.0 at 64", for budgets that were reached."""
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
    VIDEO_PAGE.write_text(video_page(VIDEO_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
