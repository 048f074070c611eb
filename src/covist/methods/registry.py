"""The methods by name. A method registers itself beside its definition."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from covist.contract.method import Method
from covist.errors import CovistError

_METHODS: dict[str, type[Method]] = {}


def register_method(method: type[Method]) -> type[Method]:
    """Class decorator: make a method available as `covist.compress(..., method=method.name)`."""
    if method.name in _METHODS:
        raise CovistError(
            f"a method named {method.name!r} is registered already, by {_METHODS[method.name].__module__}"
        )
    _METHODS[method.name] = method
    return method


@cache
def _import_methods() -> None:
    package = importlib.import_module("covist.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"covist.methods.{module.name}")


def available_methods() -> dict[str, type[Method]]:
    """Name -> method class, in alphabetical order.

    >>> "covist-fixed" in available_methods()
    True
    """
    _import_methods()
    return dict(sorted(_METHODS.items()))


def option_names(method: type[Method]) -> list[str]:
    """What the constructors of a method and of its bases take by name."""
    constructors = (inspect.signature(base.__init__) for base in method.__mro__[:-1] if "__init__" in vars(base))
    items = (item for signature in constructors for item in list(signature.parameters.values())[1:])
    return list(dict.fromkeys(item.name for item in items if item.kind is not item.VAR_KEYWORD))
