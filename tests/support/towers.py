"""What the attention of a vision tower computes, seen from inside, for references that must not share our reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


@dataclass(frozen=True)
class SeenAttention:
    """One call of eager attention."""

    keys: Tensor  # [tiles, n, width]
    weights: Tensor  # [tiles, heads, n, n]


@contextmanager
def eager_attention(module: Any, tower: Any) -> Iterator[list[SeenAttention]]:
    """Let a tower of a transformers `module` run eagerly, and list what each of its blocks computed."""
    seen: list[SeenAttention] = []
    eager, before = module.eager_attention_forward, tower.config._attn_implementation

    def watched(block: Any, queries: Tensor, keys: Tensor, *args: Any, **kwargs: Any) -> Any:
        output, weights = eager(block, queries, keys, *args, **kwargs)
        seen.append(SeenAttention(keys.transpose(1, 2).flatten(2), weights))
        return output, weights

    with patch.object(module, "eager_attention_forward", watched):
        tower.set_attn_implementation("eager")
        try:
            yield seen
        finally:
            tower.set_attn_implementation(before)


def tokens_of_patches(patches: Tensor, fold: int) -> Tensor:
    """Means over squares of fold x fold patches: [tiles, side x side, k] -> [tiles, T, k]."""
    tiles, count, width = patches.shape
    side = round(count**0.5)
    means = [
        patches.view(tiles, side, side, width)[:, row : row + fold, column : column + fold].mean((1, 2))
        for row in range(0, side, fold)
        for column in range(0, side, fold)
    ]
    return torch.stack(means, dim=1)


def runs(ids: list[int], token: int) -> list[int]:
    """Lengths of the unbroken stretches of a token."""
    return [len(list(same)) for own, same in groupby(ids) if own == token]
