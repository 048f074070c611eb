"""All methods and what they say about themselves, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from covist.config import CovistConfig
from covist.contract.kinds import CRITERIA, NEEDS, NO_NEED
from covist.contract.method import Method
from covist.errors import CovistError
from covist.methods.combined import ATTENTION, COMPOSITION, Combined, parts_read
from covist.methods.create import create_method, row_names
from covist.methods.grammar import parse_name
from covist.methods.registry import available_methods, option_defaults, option_meanings

_ADDED = {
    COMPOSITION: "CoViST's composition of what was removed (Eqs. 6-8)",
    ATTENTION: "CoViST's attention (Eqs. 9 and 10)",
}
_EXAMPLE = {"layers": 32, "budget": 64, "tokens": 576}
WHERE = {"before": "before the decoder", "inside": "inside the decoder", "both": "before and inside the decoder"}
"""Where tokens are removed."""


def catalogue() -> list[dict[str, Any]]:
    """One entry per registered method, as `describe` returns it."""
    return [describe(name) for name in available_methods()]


def describe(name: str) -> dict[str, Any]:
    """Everything about a method or combination: the fields of its `MethodInfo`, and its settings.

    >>> describe("vispruner")["settings"][0]["name"]
    'important'
    """
    name = name.partition(":")[0]
    method, parsed = create_method(name), parse_name(name)
    base = create_method(parsed.base) if isinstance(method, Combined) else method
    constants = parts_read(base, set(parsed.parts)) if isinstance(method, Combined) else base.reads_constants
    entry = {"name": method.name, "where": _where(method), "positions": method.positions, **asdict(base.info)}
    added = [_ADDED[part] for part in _ADDED if part in parsed.parts]
    entry["acts"] = "; then ".join([entry["acts"], *added])
    entry["settings"] = [*_options(base, method.positions), *_constants(constants, getattr(base, "config", None))]
    return _of_row(name, entry) if name in row_names() else entry


def _of_row(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry of a row of the cumulative study: what it switches off or changes in the method that it is made of."""
    whole = {setting["name"]: setting for setting in describe(entry["name"])["settings"]}
    changed = [setting_text(setting) for setting in entry["settings"] if setting != whole[setting["name"]]]
    row = f"row {name[-1]} of the paper's cumulative study: {entry['name']}"
    return {**entry, "name": name, "row": f"{row} with {', '.join(changed)}" if changed else f"{row} as published"}


def grouped(entries: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The entries by where they act and their criterion, in the order of these vocabularies; no empty groups.

    >>> [entry["name"] for entry in grouped([describe("uniform"), describe("fastv")])["inside", "attention"]]
    ['fastv']
    """
    entries = list(entries)
    groups = {
        (where, kind): [entry for entry in entries if (entry["where"], entry["criterion"]) == (where, kind)]
        for where in WHERE
        for kind in (*CRITERIA, "")
    }
    return {group: members for group, members in groups.items() if members}


def matching(
    entries: Sequence[dict[str, Any]],
    acts: str | None = None,
    needs: Sequence[str] = (),
    licence: str | None = None,
    made_for: str | None = None,
) -> list[dict[str, Any]]:
    """The entries that act there, read all of these signals, have this licence, and were made for that.

    needs: words of `NEEDS`, or "none" for the methods that read no signal
    licence: a part of the licence's text, in upper or lower case
    made_for: "image" or "video"

    >>> [entry["name"] for entry in matching(catalogue(), acts="both", needs=["clip-text"])]
    ['covist-pro']
    """
    unknown = [need for need in needs if need not in (*NEEDS, NO_NEED)]
    if unknown:
        raise CovistError(f"needs {unknown[0]!r}: choose from {', '.join(NEEDS)}, {NO_NEED}")
    licences = sorted({entry["licence"] for entry in entries if entry["licence"]})
    if licence is not None and not any(licence.lower() in known.lower() for known in licences):
        raise CovistError(f"licence {licence!r}: no method has it; choose from {', '.join(licences)}")
    return [
        entry
        for entry in entries
        if acts in (None, entry["where"])
        and made_for in (None, entry["made_for"])
        and all(_reads(entry["needs"], need) for need in needs)
        and (licence is None or licence.lower() in entry["licence"].lower())
    ]


def setting_text(setting: dict[str, Any]) -> str:
    """A setting with its default, as written after the colon of a name; pairs can only be given in Python.

    >>> setting_text({"name": "important", "default": 0.5, "meaning": ""})
    'important=0.5'
    """
    value = setting["default"]
    parts = value if isinstance(value, tuple) else (value,)
    if any(isinstance(part, tuple) for part in parts):
        return setting["name"]
    words = {"True": "on", "False": "off", "None": "none"}
    written = [f"{part:g}" if isinstance(part, float) else words.get(str(part), str(part)) for part in parts]
    return f"{setting['name']}={'/'.join(written)}"


def _reads(needs: Sequence[str] | None, need: str) -> bool:
    return needs is not None and (not needs if need == NO_NEED else need in needs)


def _where(method: Method) -> str:
    """Where tokens are removed, judged by the schedule: before the decoder, inside it, or both."""
    stages = method.schedule(**_EXAMPLE).stages
    before, inside = stages[0][1] < _EXAMPLE["tokens"], len(stages) > 1
    return "both" if before and inside else "inside" if inside else "before"


def _options(method: Method, positions: str) -> list[dict[str, Any]]:
    meanings = option_meanings(type(method))
    defaults = {**option_defaults(type(method)), "positions": positions}
    return [{"name": name, "default": value, "meaning": meanings.get(name, "")} for name, value in defaults.items()]


def _constants(parts: tuple[str, ...], config: CovistConfig | None) -> list[dict[str, Any]]:
    """Fields of `CovistConfig` that belong to some parts of CoViST."""
    read = CovistConfig.fields_of(parts) if parts else []
    return [
        {"name": item.name, "default": getattr(config, item.name, item.default), "meaning": item.metadata["doc"]}
        for item in fields(CovistConfig)
        if item.name in read
    ]
