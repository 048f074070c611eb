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
    """Build a method by name; unknown names list the known ones."""
    known = methods()
    if name not in known:
        raise ValueError(f"unknown method {name!r}; choose one of {', '.join(known)}")
    return known[name](**options)
