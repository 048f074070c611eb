"""Greedy coverage (Eq. 5) and the coverage-gap reserve."""

import torch
from torch import Tensor

from covist.method.checks import require_count, require_shape

TIE = 1e-12
"""Gains closer than this, of a total mass of one, are equal; the lowest index wins."""


def greedy_coverage(affinity: Tensor, omega: Tensor, start: Tensor, count: int) -> Tensor:
    """Grow the token set `start` [any] greedily to `count` tokens by F of Eq. 5 -> chosen [N] bool.

    affinity: s [N, N]; the kernel is its square. omega: coverage weights [N].
    """
    require_shape("greedy_coverage", "affinity", affinity, (omega.shape[0], omega.shape[0]))
    require_count("greedy_coverage", count, omega.shape[0])
    chosen = torch.zeros_like(omega, dtype=torch.bool)
    chosen[start] = True
    kernel = affinity.double().square()
    covered = coverage(affinity, chosen).double()
    for _ in range(count - start.shape[0]):
        gains = (kernel - covered).clamp(min=0) @ omega.double()
        best = (gains.masked_fill(chosen, -1) >= gains[~chosen].max() - TIE).int().argmax()
        chosen[best] = True
        covered = torch.maximum(covered, kernel[best])
    return chosen


def coverage(affinity: Tensor, chosen: Tensor) -> Tensor:
    """max over the chosen tokens of the kernel, for every token [N]; zero where nothing is chosen."""
    return affinity.masked_fill(~chosen[:, None], 0).amax(0).square()


def fill_reserve(affinity: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Add to `chosen` [N] bool, one by one, `count` tokens with the largest gap `1 - max_i kappa_ij`."""
    chosen = chosen.clone()
    covered = coverage(affinity, chosen)
    for _ in range(count):
        best = covered.masked_fill(chosen, torch.inf).argmin()
        chosen[best] = True
        covered = torch.maximum(covered, affinity[best].square())
    return chosen
