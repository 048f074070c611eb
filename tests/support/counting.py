"""Plain layers that count the tokens of a shortened sequence as those of the whole prompt, for literal references."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

COUNTING = ("InklingAttention", "Llama4TextAttention")
"""Classes that number their tokens by `torch.arange` where others read positions."""
OF_BLOCKS = ("MiniMaxM3VLIndexer",)
"""Indexers that compare positions with the numbers of keys, though positions of a shortened sequence have gaps."""


@contextmanager
def counting(decoder: Any, left: Iterable[Tensor]) -> Iterator[None]:
    """`left`: the rows of the sequences that the layers meet, whose lengths differ."""
    rows = {len(one): one for one in left}
    with ExitStack() as stack:
        for name in {type(part).__module__ for part in decoder.modules() if type(part).__name__ in COUNTING}:
            stack.enter_context(mock.patch.object(sys.modules[name], "torch", _Torch(rows)))
        for part in decoder.modules():
            if type(part).__name__ in OF_BLOCKS:
                stack.callback(part.register_forward_pre_hook(_numbered).remove)
        yield


class _Torch:
    """torch with another `arange`."""

    def __init__(self, rows: dict[int, Tensor]):
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def arange(self, *args: Any, **options: Any) -> Tensor:
        is_count = len(args) == 1 and args[0] in self._rows
        return self._rows[args[0]] if is_count else torch.arange(*args, **options)


def _numbered(module: Any, args: tuple) -> tuple:
    *others, positions = args
    return (*others, torch.arange(positions.shape[-1]).expand(positions.shape))
