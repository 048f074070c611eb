"""Counts of what costs time on any machine: reads from a device, decodes of a tokenizer, calls of our functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import covist

SOURCES = str(Path(covist.__file__).parent)
READS = ("_local_scalar_dense", "equal", "nonzero", "is_nonzero", "masked_select", "item")
"""Operators that make the host wait for a value, or for a size that depends on values."""


class DeviceReads(TorchDispatchMode):
    """The number of operators that read from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in READS
        return func(*args, **(kwargs or {}))


def device_reads(run: Callable[[], object]) -> int:
    with DeviceReads() as reads:
        run()
    return reads.count


def own_calls(run: Callable[[], object]) -> int:
    """Calls of covist's functions; a generator counts once for every value that it yields."""
    count = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(SOURCES)

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@contextmanager
def counted_decodes(tokenizer: Any) -> Iterator[list[int]]:
    """The lengths of all texts that a tokenizer decodes."""
    lengths: list[int] = []
    original = type(tokenizer).decode

    def decode(self: Any, tokens: Any, *args: Any, **kwargs: Any) -> Any:
        lengths.append(len(tokens))
        return original(self, tokens, *args, **kwargs)

    tokenizer.__dict__["decode"] = decode.__get__(tokenizer)
    try:
        yield lengths
    finally:
        del tokenizer.__dict__["decode"]
