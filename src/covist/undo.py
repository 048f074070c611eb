"""Changes to a loaded model that can be undone exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class ReplacedMethod:
    """Replaces `owner.name` with `wrapper(original)` until `remove()`.

    The replacement is an instance attribute that hides the class's method, so removal is exact. `functools.wraps`
    keeps the signature visible, because `generate` filters its arguments by it. If somebody else has wrapped the
    replacement since, theirs stays in place and reaches the original through it.
    """

    def __init__(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]):
        original = getattr(owner, name)
        changed = wrapper(original)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return (changed if self._active else original)(*args, **kwargs)

        self._owner, self._name, self._replacement, self._active = owner, name, replacement, True
        self._before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
        setattr(owner, name, replacement)

    def remove(self) -> None:
        self._active = False
        if self._owner.__dict__.get(self._name) is self._replacement:
            del self._owner.__dict__[self._name]
            self._owner.__dict__.update(self._before)


@contextmanager
def all_or_nothing(model: nn.Module) -> Iterator[None]:
    """If the `with` block fails, take every hook and every attribute off the model that it has put on."""
    before = [(module, dict(vars(module)), _hooks(module)) for module in model.modules()]
    try:
        yield
    except BaseException:
        for module, attributes, hooks in before:
            for name in set(vars(module)) - set(attributes):
                del vars(module)[name]
            vars(module).update(attributes)
            for name, registered in hooks.items():
                vars(module)[name].clear()
                vars(module)[name].update(registered)
        raise


def _hooks(module: nn.Module) -> dict[str, dict]:
    return {name: dict(value) for name, value in vars(module).items() if "_hooks" in name and isinstance(value, dict)}
