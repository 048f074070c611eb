"""Incoming attention: how much attention patches receive, which is the evidence of an encoder without a class token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from covist.contract.decoder import Rotary
from covist.formulas.rotary import rotate

ALL_QUERY_UP_TO = 2048
"""Up to this many patches, all of them are query patches in every head. With more, every second one is, in a
checkerboard, at half the cost."""

CACHED_LOGITS, DEVICE_LOGITS = 1 << 18, 1 << 24
"""Logits in memory at a time: 1 MiB, which stays in a core's cache, and 64 MiB, which keep an accelerator busy."""
LEAST_ROWS = 32
"""Fewest queries whose logits are in memory at a time, however long the rows are; fewer would make products slow."""


@torch.no_grad()
def incoming_attention(queries: Tensor, keys: Tensor, rotary: Rotary | None, query_patches: Sequence[Tensor]) -> Tensor:
    """Attention that each of n patches receives, averaged over heads and over query patches: [n] with sum 1.

    queries and keys [n, heads, w] are before rotary, which is cos and sin [n, w] or None. In head h, the queries
    of the patches `query_patches[h % len(query_patches)]` count.

    Memory beyond the arguments grows with n, never with n squared: float32 copies of one head's queries and keys, and
    logits and probabilities of as many queries as `rows_at_a_time` allows. At 65,536 patches (16,384 tokens, w = 80)
    that is less than 200 MiB on a CPU; one head's logits at once would be 16 GiB.
    """
    received = torch.zeros(len(keys), dtype=torch.float32, device=keys.device)
    for head in range(keys.shape[1]):
        in_head = query_patches[head % len(query_patches)]
        for _, attention in _attention_of_head(queries, keys, rotary, in_head, head):
            received += attention.sum(0) / len(in_head)
    return received / keys.shape[1]


@torch.no_grad()
def attention_shares(
    queries: Tensor, keys: Tensor, rotary: Rotary | None, query_patches: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """`incoming_attention`, and the part of it that each patch receives from itself: [n] each."""
    received, to_itself = torch.zeros(2, len(keys), dtype=torch.float32, device=keys.device)
    for head in range(keys.shape[1]):
        in_head = query_patches[head % len(query_patches)]
        for rows, attention in _attention_of_head(queries, keys, rotary, in_head, head):
            received += attention.sum(0) / len(in_head)
            to_itself[rows] += attention.gather(1, rows[:, None])[:, 0] / len(in_head)
    return received / keys.shape[1], to_itself / keys.shape[1]


def _attention_of_head(
    queries: Tensor, keys: Tensor, rotary: Rotary | None, query_patches: Tensor, head: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Query patches [rows] and their attention to all patches [rows, n], a few at a time."""
    transposed = _turned(keys[:, head], rotary).T.contiguous()  # [w, n]
    turning = None if rotary is None else (rotary[0][query_patches], rotary[1][query_patches])
    head_queries = _turned(queries[query_patches, head], turning) * keys.shape[-1] ** -0.5  # [queries, w]
    step = rows_at_a_time(keys)
    for rows, chunk in zip(query_patches.split(step), head_queries.split(step), strict=True):
        yield rows, (chunk @ transposed).softmax(-1)


def _turned(states: Tensor, rotary: Rotary | None) -> Tensor:
    return states.float() if rotary is None else rotate(states, *rotary)


def rows_at_a_time(keys: Tensor) -> int:
    """Queries whose logits over all keys [n, ...] are in memory together."""
    budget = CACHED_LOGITS if keys.device.type == "cpu" else DEVICE_LOGITS
    return max(LEAST_ROWS, budget // len(keys))


def choose_query_patches(count: int, merge: int, exact: bool, device: torch.device) -> list[Tensor]:
    """Which of `count` patches are query patches in which head, for `incoming_attention`.

    All of them if `exact` or if they are few. Otherwise the image is a checkerboard: the queries of its black
    patches count in one head and those of its white patches in the next. So queries of every token count in every head,
    and those of every patch in every second head. The patches of a token, merge x merge, follow each other row by row.
    """
    place = torch.arange(count, device=device) % merge**2
    return _checkerboard(place // merge + place % merge, exact)


def choose_query_patches_in_rows(count: int, columns: int, exact: bool, device: torch.device) -> list[Tensor]:
    """The same for patches in row order over the whole image, `columns` in a row."""
    patches = torch.arange(count, device=device)
    return _checkerboard(patches // columns + patches % columns, exact)


def _checkerboard(diagonals: Tensor, exact: bool) -> list[Tensor]:
    """Patches of even and of odd `diagonals` [n] (row plus column), or all of them together."""
    patches = torch.arange(len(diagonals), device=diagonals.device)
    if exact or len(diagonals) <= ALL_QUERY_UP_TO:
        return [patches]
    white = diagonals % 2 == 1
    return [patches[~white], patches[white]]
