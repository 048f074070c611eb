"""All steps of greedy coverage in one kernel, written in Triton; importing this needs Triton.

One program handles one image. It keeps the gain of every token and lowers it as the sparse loop does, by the columns
whose coverage rose: that reads about N^2 log K affinities instead of N^2 K, few enough for a single multiprocessor.
Contributions are whole units, as in `dense_greedy.py`, so all sums are exact, and both choose the same tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192
"""Affinities that a program handles at once."""


def grow_in_kernel(affinity: Tensor, units: Tensor, start: Tensor, steps: int) -> Tensor:
    """The next tokens of greedy coverage [..., steps]: what `grow_in_loop` returns, launched once."""
    tokens, outer = affinity.shape[-1], affinity.shape[:-2]
    images = max(1, outer.numel())
    begun = torch.zeros(images, 2, tokens, dtype=torch.int64, device=affinity.device)  # covered, chosen
    if start.shape[-1]:
        rows = affinity.gather(-2, start[..., None].expand(*start.shape, tokens)).double().square()
        begun[:, 0] = (rows * units[..., None, :]).amax(-2).view(images, tokens)  # whole units: rounded down
        begun[:, 1].scatter_(1, start.reshape(images, -1), 1)
    picks = torch.empty(images, steps, dtype=torch.int64, device=affinity.device)
    risen = torch.empty(images, 3, tokens, dtype=torch.int64, device=affinity.device)
    block = triton.next_power_of_2(tokens)
    with torch.cuda.device_of(affinity):  # Triton launches on the current device
        _grow[(images,)](
            affinity.contiguous(),
            units.contiguous(),
            begun,
            risen,
            picks,
            tokens,
            steps,
            BLOCK=block,
            ROWS=max(1, min(8, TILE // block)),
            num_warps=8 if block <= 1024 else 16,
        )
    return picks.view(*outer, steps)


@triton.jit
def _grow(  # type: ignore[no-untyped-def]
    affinity, units, begun, risen, picks, tokens, steps, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """affinity: [images, N, N] float32; units: [images, N] float64; begun: [images, 2, N] what is covered, and which
    tokens are chosen; risen: [images, 3, N], scratch; picks: [images, steps], the result."""
    image = tl.program_id(0).to(tl.int64)
    affinity += image * tokens * tokens
    units += image * tokens
    begun += image * 2 * tokens
    risen += image * 3 * tokens
    picks += image * steps

    place = tl.arange(0, BLOCK)
    inside = place < tokens
    weight = tl.load(units + place, mask=inside, other=0.0)
    level = tl.load(begun + place, mask=inside, other=0)
    chosen = tl.load(begun + tokens + place, mask=inside, other=1)

    gain = tl.zeros([BLOCK], dtype=tl.int64)
    for first in range(0, tokens, ROWS):
        column = first + tl.arange(0, ROWS)
        own = _contributions(affinity, units, column, column < tokens, place, inside, tokens)
        low = tl.load(begun + column, mask=column < tokens, other=0)
        gain += tl.sum(tl.maximum(own - low[:, None], 0), axis=0)
    gain = tl.where(chosen == 0, gain, -1)

    for step in range(steps):
        best = tl.max(gain, axis=0)
        pick = tl.min(tl.where(gain == best, place, BLOCK), axis=0)
        tl.store(picks + step, pick.to(tl.int64))
        gain = tl.where(place == pick, -1, gain)
        row = tl.load(affinity + pick.to(tl.int64) * tokens + place, mask=inside, other=0.0).to(tl.float64)
        reached = tl.maximum(level, (row * row * weight).to(tl.int64))
        rises = reached > level
        rank = tl.cumsum(rises.to(tl.int32), axis=0) - 1
        count = tl.sum(rises.to(tl.int32), axis=0)
        tl.store(risen + rank, place.to(tl.int64), mask=rises)
        tl.store(risen + tokens + rank, level, mask=rises)
        tl.store(risen + 2 * tokens + rank, reached, mask=rises)
        tl.debug_barrier()  # what one thread has stored, others load
        for first in range(0, count, ROWS):
            number = first + tl.arange(0, ROWS)
            there = number < count
            column = tl.load(risen + number, mask=there, other=0)
            low = tl.load(risen + tokens + number, mask=there, other=0)[:, None]
            high = tl.load(risen + 2 * tokens + number, mask=there, other=0)[:, None]
            own = _contributions(affinity, units, column, there, place, inside, tokens)
            gain -= tl.sum(tl.minimum(tl.maximum(own, low), high) - low, axis=0)
        tl.debug_barrier()  # before the next step overwrites it
        level = reached


@triton.jit
def _contributions(affinity, units, column, there, place, inside, tokens):  # type: ignore[no-untyped-def]
    """[ROWS, BLOCK] whole units of some columns that each token covers; the affinity is symmetric."""
    pairs = affinity + column.to(tl.int64)[:, None] * tokens + place[None, :]
    rows = tl.load(pairs, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float64)
    weight = tl.load(units + column, mask=there, other=0.0)
    return (rows * rows * weight[:, None]).to(tl.int64)
