"""Hooks that families install: what one leaves for the next, and methods whose results are seen."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from torch import nn


class Scratch(threading.local):
    """What the hooks of one call leave for each other; every thread has its own, so requests do not mix."""

    def __init__(self) -> None:
        self._left: dict[str, Any] = {}

    def leave(self, name: str, value: Any) -> None:
        self._left[name] = value

    def take(self) -> dict[str, Any]:
        """Everything that was left; nothing stays behind."""
        left, self._left = self._left, {}
        return left


class WrappedMethod:
    """Call `after(arguments, output)` whenever `owner.name(...)` returns; `remove()` restores the original.

    The wrapper is an instance attribute in front of the class's method, so removal is exact. `functools.wraps` keeps
    the signature visible, because `generate` filters its arguments by it.
    """

    def __init__(self, owner: nn.Module, name: str, after: Callable[[dict[str, Any], Any], object]):
        original = getattr(owner, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            after(signature.bind(*args, **kwargs).arguments, output)
            return output

        self._owner, self._name = owner, name
        self._before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
        setattr(owner, name, wrapper)

    def remove(self) -> None:
        self._owner.__dict__.pop(self._name, None)
        self._owner.__dict__.update(self._before)
