"""What there is to choose from, as plain values."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from covist.config import CovistConfig
from covist.contract.method import Method
from covist.methods.combined import ATTENTION, COMPOSITION, Combined, parts_read
from covist.methods.create import create_method
from covist.methods.grammar import parse_name
from covist.methods.registry import available_methods, option_defaults, option_meanings

_ADDED = {
    COMPOSITION: "CoViST's composition of what was removed (Eqs. 6-8)",
    ATTENTION: "CoViST's attention (Eqs. 9 and 10)",
}
_EXAMPLE = {"layers": 32, "budget": 64, "tokens": 576}


def catalogue() -> list[dict[str, Any]]:
    """One entry per registered method, as `describe` gives it."""
    return [describe(name) for name in available_methods()]


def describe(name: str) -> dict[str, Any]:
    """Everything there is to know about a method or combination: what its `MethodInfo` says, and its settings.

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
    entry["settings"] = [*_options(base, method.positions), *_constants(constants)]
    return entry


def _where(method: Method) -> str:
    """Where tokens are removed, judged by the schedule: before the decoder, inside it, or both."""
    stages = method.schedule(**_EXAMPLE).stages
    before, inside = stages[0][1] < _EXAMPLE["tokens"], len(stages) > 1
    return "both" if before and inside else "inside" if inside else "before"


def _options(method: Method, positions: str) -> list[dict[str, Any]]:
    meanings = option_meanings(type(method))
    defaults = {**option_defaults(type(method)), "positions": positions}
    return [{"name": name, "default": value, "meaning": meanings.get(name, "")} for name, value in defaults.items()]


def _constants(parts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Fields of `CovistConfig` that belong to some parts of CoViST."""
    read = CovistConfig.fields_of(parts) if parts else []
    return [
        {"name": item.name, "default": item.default, "meaning": item.metadata["doc"]}
        for item in fields(CovistConfig)
        if item.name in read
    ]
