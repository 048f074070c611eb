"""The pass that a thread's forward call belongs to, for functions that transformers calls without naming the call.

Passes are entered and left as scopes, so an error or an interrupt cannot leave one for a later call to meet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covist.engine.fixed_step import FixedStep
    from covist.engine.passes import Pass


class _Passes(threading.local):
    def __init__(self) -> None:
        self.entered: list[Pass | FixedStep | None] = []


_PASSES = _Passes()


@contextmanager
def running(one: Pass | FixedStep | None) -> Iterator[None]:
    """Calls of this thread belong to a pass inside the `with` block; None: to the plain model."""
    entered = _PASSES.entered
    depth = len(entered)
    entered.append(one)
    try:
        yield
    finally:
        del entered[depth:]


def current() -> Pass | FixedStep | None:
    """The pass that this thread runs, if it is compressed."""
    entered = _PASSES.entered
    return entered[-1] if entered else None


def inside_layers() -> bool:
    """Whether the running pass has reached the layers, where a cache counts the keys that it holds."""
    one = current()
    return one is not None and one.inside
