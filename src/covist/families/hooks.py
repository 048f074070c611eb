"""Building blocks for the hooks of families: values that one hook leaves for the next, and wrapped methods."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from covist.compiled import uncompiled
from covist.errors import CovistError
from covist.undo import ReplacedMethod


class Scratch(threading.local):
    """Values that the hooks of one call leave for each other; every thread has its own, so requests do not mix.

    While `is_requested` returns False, nothing is kept.
    """

    def __init__(self, is_requested: Callable[[], bool] | None = None) -> None:
        self._left: dict[str, Any] = {}
        self._is_wanted = is_requested

    def leave(self, name: str, value: Any) -> None:
        if self._is_wanted is None or self._is_wanted():
            self._left[name] = value

    def add(self, name: str, value: Any) -> None:
        """Leave one more value under a name."""
        self.leave(name, [*self._left.get(name, ()), value])

    def take(self) -> dict[str, Any]:
        """Return everything that was left, and forget it."""
        left, self._left = self._left, {}
        return left


class Running(threading.local):
    """How many nested calls of some methods are running in a thread."""

    calls = 0


class WrappedMethod(ReplacedMethod):
    """Call `before()`, and `after(arguments, output)` if `owner.name(...)` returns; `remove()` restores the original.

    Methods that share `running` may call each other: `before` and `after` see only the outermost call.
    """

    def __init__(
        self,
        owner: nn.Module,
        name: str,
        after: Callable[[dict[str, Any], Any], object],
        running: Running | None = None,
        before: Callable[[], object] | None = None,
    ):
        running = running or Running()

        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(original)

            def call(*args: Any, **kwargs: Any) -> Any:
                if before is not None and not running.calls:
                    before()
                running.calls += 1
                try:
                    with uncompiled(owner):  # hooks that read along do not fit into a compiled tower
                        output = original(*args, **kwargs)
                finally:
                    running.calls -= 1
                if not running.calls:
                    after(signature.bind(*args, **kwargs).arguments, output)
                return output

            return call

        super().__init__(owner, name, wrapper)


def require_configured_features(config: Any, arguments: dict[str, Any]) -> None:
    """Hooks are on the layers that the configuration names, so a call that encodes images cannot choose others."""
    for name in ("vision_feature_layer", "vision_feature_select_strategy"):
        given, configured = arguments.get(name), getattr(config, name, None)
        if given not in (None, configured):
            raise CovistError(
                f"{name}={given!r}: under compression, a call must use the model's own setting, {configured!r}"
            )
