"""The methods by name. Each method is registered where it is defined."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from covist.contract.guard import is_defined_again, is_own
from covist.contract.method import Method
from covist.errors import CovistError
from covist.methods.grammar import ALL, ROW, VANILLA
from covist.plugins import import_all, load_modules

_METHODS: dict[str, type[Method]] = {}
_NAME = re.compile(r"[^\W_][\w.-]*")
_PARTS = ("select", "enter", "begin", "schedule", "attention_rule")
"""At least one of these makes a method one of its own."""


def register_method(method: type[Method]) -> type[Method]:
    """Class decorator: make a method available as `covist.compress(..., method=method.name)`.

    >>> @covist.register_method
    ... class Foremost(covist.Method):
    ...     name = "foremost"
    ...     info = covist.MethodInfo("none", "before the decoder", "nothing", "exactly K in every layer")
    ...     def select(self, image, count):
    ...         return image.positions.argsort()[:count]
    >>> covist.create_method("foremost").positions
    'keep'
    """
    if not is_own(method):
        _check(method)
        _import_own()  # so that covist's own methods keep their names, whoever comes first
    known = _METHODS.get(method.name)
    if known is not None and not is_defined_again(method, known):
        first = known.__module__
        raise CovistError(f"a method named {method.name!r} is already registered by {first}; choose another name")
    _METHODS[method.name] = method
    return method


def _check(method: type[Method]) -> None:
    """Refuse a class that no command could use."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise CovistError(f"{method!r} is not a method: make it a subclass of covist.Method")
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (VANILLA, ALL) or name.startswith(ROW):
        raise CovistError(
            f"{method.__name__} cannot be named {name!r}: a name consists of letters, digits, '-', '_' and '.', begins "
            f"with a letter or digit, and is not {VANILLA}, {ALL} or {ROW}..."
        )
    if not any(getattr(method, part) is not getattr(Method, part) for part in _PARTS):
        raise CovistError(f"{method.__name__} chooses no tokens: write select, which returns the indices to keep")


@cache
def _import_own() -> None:
    import_all("covist.methods")


@cache
def _import_methods() -> None:
    load_modules("covist.methods")


def available_methods() -> dict[str, type[Method]]:
    """All registered methods, in alphabetical order: name -> method class.

    >>> "covist-fixed" in covist.available_methods()
    True
    """
    _import_methods()
    return dict(sorted(_METHODS.items()))


def methods_for_any_model() -> dict[str, type[Method]]:
    """The registered methods that no vision tower refuses, which "all" stands for."""
    return {name: method for name, method in available_methods().items() if not method.rates_patches}


def option_names(method: type[Method]) -> list[str]:
    """Names of the options that the constructors of a method and of its base classes accept."""
    return list(option_defaults(method))


def option_defaults(method: type[Method]) -> dict[str, Any]:
    """The options of a method with their defaults, those of its own constructor first."""
    constructors = (
        inspect.signature(vars(base)["__init__"]) for base in method.__mro__[:-1] if "__init__" in vars(base)
    )
    items = [item for signature in constructors for item in list(signature.parameters.values())[1:]]
    found: dict[str, Any] = {}
    for item in items:
        if item.kind is not item.VAR_KEYWORD:
            found.setdefault(item.name, item.default)
    return found


def option_meanings(method: type[Method]) -> dict[str, str]:
    """What the options of a method and of its base classes mean."""
    described = [vars(base).get("options", {}) for base in method.__mro__]
    return {name: text for options in reversed(described) for name, text in options.items()}
