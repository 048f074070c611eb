"""The names of methods, which are the same in Python, on the command line and in files.

vanilla                         no compression
covist-fixed, random, ...       any registered method
divprune+csc+sca, ...           its selection with CoViST's composition (+csc), attention (+sca) or both
covist-row-a ... covist-row-h   the rows of the paper's cumulative study
all                             every registered method, where a list is accepted
NAME:field=value,field=value    with settings: options of the method (`positions=keep`), and fields of `CovistConfig`
                                if it uses a part of CoViST
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from covist.errors import CovistError

VANILLA, ALL, ROW = "vanilla", "all", "covist-row-"
_WORDS = {"on": True, "true": True, "off": False, "false": False, "none": None}


@dataclass(frozen=True)
class MethodName:
    """A parsed name: base, parts and settings of `divprune+csc:content=off`."""

    base: str
    parts: tuple[str, ...]
    settings: dict[str, Any]


def parse_name(text: str) -> MethodName:
    """Parse a name; whether such a method exists is not checked here.

    >>> parse_name("divprune+csc:content=off,weight_limit=64")
    MethodName(base='divprune', parts=('csc',), settings={'content': False, 'weight_limit': 64})
    """
    name, colon, written = text.strip().partition(":")
    base, *parts = name.split("+")
    settings = [_setting(text, part) for part in written.split(",")] if colon else []
    return MethodName(base, tuple(parts), dict(settings))


def usual_spelling(text: str) -> str:
    """A name with its parts in one order, each once; its settings stay as they are.

    >>> usual_spelling(" divprune+sca+csc:content=off")
    'divprune+csc+sca:content=off'
    """
    name, colon, settings = text.strip().partition(":")
    base, *parts = name.split("+")
    return "+".join([base, *sorted(set(parts))]) + colon + settings


def is_vanilla(text: str) -> bool:
    """Whether a name stands for the uncompressed model."""
    name = parse_name(text)
    if name.base == VANILLA and (name.parts or name.settings):
        raise CovistError(f"{text!r}: vanilla has no settings")
    return name.base == VANILLA


def split_names(names: str | Iterable[str], known: Sequence[str]) -> list[str]:
    """Method names from a list or from comma-separated text; "all" stands for the `known` ones.

    >>> split_names("random,covist-fixed:content=off,attention=off", known=[])
    ['random', 'covist-fixed:content=off,attention=off']
    """
    found: list[str] = []
    for part in names.split(",") if isinstance(names, str) else names:
        is_setting = "=" in part and ":" not in part
        if is_setting and found and ":" in found[-1]:
            found[-1] += f",{part.strip()}"
        elif part.strip() == ALL:
            found += known
        elif part.strip():
            found.append(part.strip())
    if not found:
        raise CovistError("no method given; name at least one, for example covist-fixed")
    return list(dict.fromkeys(found))


def _setting(name: str, text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals or not field.strip() or not value.strip():
        raise CovistError(f"{name!r}: {text!r} is not of the form field=value")
    return field.strip(), _value(value.strip())


def _value(text: str) -> Any:
    """on/off, none, a number, numbers separated by slashes (a tuple), or a word."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if "/" in text:
        return tuple(_value(part) for part in text.split("/"))
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
