"""The methods by name. A method registers itself beside its definition."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

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
    """Build a method by name; `+csc` and `+sca` add CoViST's composition and attention to any other method."""
    combination = importlib.import_module("covist.methods.combined")
    known = methods()
    base, *parts = name.split("+")
    if base not in known:
        raise ValueError(f"unknown method {base!r}; choose one of {', '.join(known)}")
    if not parts:
        return known[base](**options)
    unknown = set(parts) - set(combination.PARTS)
    if unknown:
        raise ValueError(
            f"{name!r}: a method can be combined with {' and '.join(combination.PARTS)}, not {min(unknown)!r}"
        )
    return combination.Combined(known[base](), set(parts), **options)
