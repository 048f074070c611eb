"""The methods by name. A method registers itself beside its definition."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from covist.errors import CovistError
from covist.methods.base import Method

_METHODS: dict[str, Callable[..., Method]] = {}


def register_method(method: type[Method]) -> type[Method]:
    """Class decorator: make a method available as `covist.compress(..., method=method.name)`."""
    _METHODS[method.name] = method
    return method


@cache
def _import_methods() -> None:
    package = importlib.import_module("covist.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"covist.methods.{module.name}")


def methods() -> dict[str, Any]:
    """Name -> method class, in alphabetical order."""
    _import_methods()
    return dict(sorted(_METHODS.items()))


def create_method(name: str, **options: Any) -> Method:
    """Build a method by name; `+csc` and `+sca` add CoViST's composition and attention to any other method.

    options: those of the method; `config`, in a combination, holds the constants of CoViST's parts.
    """
    combination = importlib.import_module("covist.methods.combined")
    known = methods()
    base, *parts = name.split("+")
    if base not in known:
        raise CovistError(f"unknown method {base!r}; choose one of {', '.join(known)}")
    if not parts:
        return _build(known[base], options)
    unknown = set(parts) - set(combination.PARTS)
    if unknown:
        raise CovistError(
            f"{name!r}: a method can be combined with {' and '.join(combination.PARTS)}, not {min(unknown)!r}"
        )
    own = {option: options.pop(option) for option in ("config", "positions") if option in options}
    return combination.Combined(_build(known[base], options), set(parts), **own)


def _build(method: type[Method], options: dict[str, Any]) -> Method:
    taken = _option_names(method)
    for option in options:
        if option not in taken:
            raise CovistError(f"{method.name} has no option {option!r}; it takes {', '.join(taken)}")
    return method(**options)


def _option_names(method: type[Method]) -> list[str]:
    """What the constructors of a method and of its bases take by name."""
    constructors = (inspect.signature(base.__init__) for base in method.__mro__[:-1] if "__init__" in vars(base))
    items = (item for signature in constructors for item in list(signature.parameters.values())[1:])
    return list(dict.fromkeys(item.name for item in items if item.kind is not item.VAR_KEYWORD))
