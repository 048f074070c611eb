"""Changes to a loaded model that can be undone exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class ReplacedMethod:
    """Replaces `owner.name` with `wrapper(original)` until `remove()`.

    The replacement is an instance attribute that hides the class's method, so removal is exact. `functools.wraps`
    keeps the signature visible, because `generate` filters its arguments by it. Somebody else may have wrapped the
    replacement in the meantime: their wrapper stays, and still calls it, so it must do nothing once it `is_removed`.
    """

    is_removed = False

    def __init__(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]):
        original = getattr(owner, name)
        self._owner, self._name = owner, name
        self._before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
        self._replacement = functools.wraps(original)(wrapper(original))
        setattr(owner, name, self._replacement)

    def remove(self) -> None:
        self.is_removed = True
        if self._owner.__dict__.get(self._name) is self._replacement:
            del self._owner.__dict__[self._name]
            self._owner.__dict__.update(self._before)
