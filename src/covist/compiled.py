"""Compiled code that runs uncompiled for a while: where sizes are known only afterwards, or hooks must read along."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def is_compiled(module: nn.Module) -> bool:
    """Whether a module or its `forward` was given to `torch.compile`; its parts are not looked at."""
    forward = vars(module).get("forward")
    return module._compiled_call_impl is not None or hasattr(forward, "_torchdynamo_orig_callable")


class Parts:
    """All modules inside a module, listed once: walking through them takes longer than looking at each."""

    def __init__(self, module: nn.Module):
        self._attributes = [(part, vars(part)) for part in module.modules()]

    @property
    def are_compiled(self) -> bool:
        """Whether any of them is compiled by now; torch writes down on a module what it compiles of it."""
        return any(
            is_compiled(part)
            for part, own in self._attributes
            if "forward" in own or own.get("_compiled_call_impl") is not None
        )


@contextmanager
def uncompiled(module: nn.Module, parts: Parts | None = None) -> Iterator[None]:
    """Run a module uncompiled in a `with` block, with all its parts, which the caller may have listed before."""
    if torch.compiler.is_compiling() or not (parts or Parts(module)).are_compiled:
        yield
        return
    _STANCE.acquire()
    try:
        yield
    finally:
        _STANCE.release()


class _Eager:
    """torch has one stance for all threads, so the first block sets it and the last one puts it back.

    Compiled code of other threads runs uncompiled meanwhile: slower, with the same results.
    """

    def __init__(self) -> None:
        self._lock, self._blocks = threading.Lock(), 0
        self._set: Any = None

    def acquire(self) -> None:
        with self._lock:
            if not self._blocks:
                self._set = torch.compiler.set_stance("force_eager")
            self._blocks += 1

    def release(self) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._set.__exit__(None, None, None)


_STANCE = _Eager()
