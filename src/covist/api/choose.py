"""A method from what a caller says: a strategy, a name with settings, or a method that exists already."""

from __future__ import annotations

from typing import Any

from covist.config import CovistConfig
from covist.contract.method import Method
from covist.errors import CovistError
from covist.methods.create import create_method


def choose_method(
    strategy: str | None,
    method: str | Method | None,
    config: CovistConfig | None,
    concentration: float | None,
    options: dict[str, Any],
) -> Method:
    """The method of `compress()`; see there for the arguments."""
    if strategy not in (None, "fixed", "pro"):
        raise CovistError(f"strategy={strategy!r}: choose 'fixed' or 'pro'")
    if method is not None and strategy is not None:
        raise CovistError("give either strategy= (CoViST) or method=, not both")
    if isinstance(method, Method):
        if config is not None or concentration is not None or options:
            raise CovistError(
                "a Method object has its options already: give them to its constructor, and freeze its tracker in "
                "place of concentration="
            )
        return method
    given = {} if config is None else {"config": config}
    chosen = create_method(method or f"covist-{strategy or 'fixed'}", **given, **options)
    if concentration is not None:
        if chosen.tracker is None:
            raise CovistError(f"{chosen.name} has no concentration reference to freeze; leave concentration= out")
        chosen.tracker.freeze(concentration)
    return chosen
