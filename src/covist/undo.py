"""Changes to a loaded model that can be undone exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class ReplacedMethod:
    """Replaces `owner.name` with `wrapper(original)` until `remove()`.

    The replacement is an instance attribute that hides the class's method, so removal is exact. `functools.wraps`
    keeps the signature visible, because `generate` filters its arguments by it.
    """

    def __init__(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]):
        original = getattr(owner, name)
        self._owner, self._name = owner, name
        self._before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
        setattr(owner, name, functools.wraps(original)(wrapper(original)))

    def remove(self) -> None:
        self._owner.__dict__.pop(self._name, None)
        self._owner.__dict__.update(self._before)
