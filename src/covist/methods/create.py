"""Create a method from its name and settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from covist.config import CovistConfig
from covist.contract.guard import is_own
from covist.contract.method import Method
from covist.errors import CovistError, choose_instead
from covist.methods.absent import absent_named
from covist.methods.combined import PARTS, Combined, parts_read
from covist.methods.grammar import ROW, VANILLA, MethodName, parse_name
from covist.methods.registry import available_methods, option_names
from covist.plugins import code_identity


def create_method(name: str, **options: Any) -> Method:
    """Build a method by its name, with settings after a colon or as keywords.

    `+csc` and `+sca` add CoViST's composition and attention to another method. Options are those of the method. If it
    uses a part of CoViST, they are also the fields of `CovistConfig`, one by one or as `config=CovistConfig(...)`.

    name: a name of `covist.available_methods()`, or a combination, with optional settings: "NAME:field=value"
    options: settings by name; each may be given here or in the name, not in both

    >>> covist.create_method("vispruner:important=0.75").important
    0.75
    >>> covist.create_method("divprune+csc+sca", weight_limit=64).name
    'divprune+csc+sca'
    """
    parsed = parse_name(name)
    for option in parsed.settings:
        if option in options:
            raise CovistError(f"{name!r} and the keyword argument both set {option}")
    options = {**parsed.settings, **options}
    if parsed.base in row_names() and not parsed.parts:
        letter = parsed.base.removeprefix(ROW)
        options.setdefault("config", CovistConfig.cumulative_row(letter))
        parsed = MethodName(f"covist-{'pro' if letter in 'gh' else 'fixed'}", (), {})
    method = _registered(parsed.base)
    return _combine(name, method, parsed.parts, options) if parsed.parts else _build(method, options)


def row_names() -> list[str]:
    """The rows of the paper's cumulative study, which can be run like methods."""
    return [f"{ROW}{letter}" for letter in "abcdefgh"]


def reads_constants(name: str) -> bool:
    """Whether a method uses a part of CoViST and so accepts `config=`.

    >>> reads_constants("divprune"), reads_constants("divprune+sca")
    (False, True)
    """
    parsed = parse_name(name)
    if parsed.parts or parsed.base not in available_methods():  # rows of the cumulative study have their own constants
        return bool(parsed.parts)
    return bool(available_methods()[parsed.base].reads_constants)


def takes_calibration(name: str) -> bool:
    """Whether the counts of a method come from a calibration, so that it accepts `calibration=`.

    >>> takes_calibration("fitprune"), takes_calibration("fastv")
    (True, False)
    """
    method = available_methods().get(parse_name(name).base)
    return method is not None and "calibration" in option_names(method)


def foreign_code(name: str) -> str | None:
    """A checksum of the code behind a method of another package; None for covist's own, whose version says it."""
    base = parse_name(name).base
    known = available_methods().get(base)
    return None if known is None or is_own(known) else code_identity(known)


def _registered(base: str) -> type[Method]:
    known = available_methods()
    if base == VANILLA:
        raise CovistError("vanilla is the uncompressed model; choose a method that compresses")
    if base not in known:
        if (absent := absent_named(base)) is not None:
            raise CovistError(f"unknown method {base!r}: {absent}")
        listed = ", ".join([VANILLA, *known, f"{ROW}a to {ROW}h"])
        all_of_them = f"choose one of {listed}, or add your own by --plugin"
        hint = choose_instead(base, [VANILLA, *known, *row_names()], otherwise=all_of_them)
        raise CovistError(f"unknown method {base!r}; {hint}")
    return known[base]


def _combine(name: str, method: type[Method], parts: tuple[str, ...], options: dict[str, Any]) -> Method:
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise CovistError(f"{name!r}: a method can be combined with {' and '.join(PARTS)}, not {min(unknown)!r}")
    for_base = {
        option: options[option] for option in options if option in option_names(method) and option != "positions"
    }
    base = _build(method, for_base)
    rest = {option: value for option, value in options.items() if option not in for_base}
    plain_name = name.partition(":")[0]
    shown = option_names(method)
    rest = _collect_config(plain_name, parts_read(base, set(parts)), rest, {"config", "positions"}, shown)
    return Combined(base, set(parts), **rest)


def _build(method: type[Method], options: dict[str, Any]) -> Method:
    taken = option_names(method)
    return method(**_collect_config(method.name, method.reads_constants, options, taken, taken))


def _collect_config(
    name: str, parts: Iterable[str], options: dict[str, Any], taken: Iterable[str], shown: Iterable[str]
) -> dict[str, Any]:
    """Collect the options that are constants of CoViST in `config`; refuse options that nothing would read.

    taken: options of the constructor itself; shown: options to name in an error.
    """
    constants = CovistConfig.fields_of(parts) if parts else []
    for option in options:
        if option == "config" and not parts:
            raise CovistError(f"{name} reads no constants of CoViST; omit config=")
        if option in taken or option in constants:
            continue
        if option in CovistConfig.parts() and parts:
            raise CovistError(f"{name} does not read {option!r}, a constant of CoViST's {CovistConfig.parts()[option]}")
        takes = [*shown, *constants]
        hint = choose_instead(option, takes, otherwise=f"it takes {', '.join(takes)}")
        raise CovistError(f"{name} has no option {option!r}; {hint}")
    given = {option: value for option, value in options.items() if option in constants}
    rest = {option: value for option, value in options.items() if option not in constants}
    if given:
        rest["config"] = (rest.get("config") or CovistConfig()).replace(**given)
    return rest
