"""Methods by name, with the variants that studies need:

vanilla                         no compression
covist-fixed, random, ...       any registered method
divprune+csc+sca, ...           its selection with CoViST's composition (+csc), attention (+sca) or both
all                             every registered method
covist-row-a ... covist-row-h   the rows of the paper's cumulative study
name:field=value,field=value    with settings: options of the method (`positions=keep`), and fields of `CovistConfig`
                                where CoViST has a part in it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from covist.config import CovistConfig
from covist.errors import CovistError
from covist.methods.base import Method
from covist.methods.registry import create_method, methods

VANILLA, ALL = "vanilla", "all"
_ROW = "covist-row-"
_WORDS = {"on": True, "true": True, "off": False, "false": False, "none": None}


def split_names(names: str | Iterable[str]) -> list[str]:
    """Method names from a list or from text with commas: "random,covist-fixed:content=off,attention=off" is two."""
    found: list[str] = []
    for part in names.split(",") if isinstance(names, str) else names:
        is_setting = "=" in part and ":" not in part
        if is_setting and found and ":" in found[-1]:
            found[-1] += f",{part.strip()}"
        elif part.strip() == ALL:
            found += methods()
        elif part.strip():
            found.append(part.strip())
    if not found:
        raise CovistError("no method given; name at least one, for example covist-fixed")
    return list(dict.fromkeys(found))


def build_method(name: str) -> Method | None:
    """The method that a name stands for; None for vanilla."""
    base, _, settings = name.partition(":")
    options = dict(_option(name, text) for text in settings.split(",")) if settings else {}
    if base == VANILLA:
        if options:
            raise CovistError(f"{name!r}: vanilla has no settings")
        return None
    config = _config(base)
    if config is None:
        return create_method(base, **options)
    combined = "+" in base
    fields = config.to_dict().keys() if combined else options.keys() - {"positions"}
    constants = {field: options.pop(field) for field in list(options) if field in fields}
    config = CovistConfig.from_dict({**config.to_dict(), **constants})
    return create_method(base if combined else f"covist-{config.strategy}", config=config, **options)


def _config(base: str) -> CovistConfig | None:
    """The configuration of a name that CoViST has a part in, None for every other method."""
    if base.startswith(_ROW):
        return CovistConfig.cumulative_row(base.removeprefix(_ROW))
    if base in ("covist-fixed", "covist-pro"):
        return CovistConfig(strategy="pro" if base.endswith("pro") else "fixed")
    plain, combined, _ = base.partition("+")
    if plain not in methods():
        known = ", ".join([VANILLA, *methods(), f"{_ROW}a to {_ROW}h"])
        raise CovistError(f"unknown method {base!r}; choose one of {known}")
    return CovistConfig() if combined else None


def _option(name: str, text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals or not field.strip() or not value.strip():
        raise CovistError(f"{name!r}: {text!r} is not of the form field=value")
    return field.strip(), _value(value.strip())


def _value(text: str) -> Any:
    """on/off, none, a number, numbers with slashes between them (a tuple), or a word."""
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
