"""Greedy coverage (Eq. 5) and the coverage-gap reserve.

The gain of token i is `sum_j omega_j max(kappa_ij - covered_j, 0)`. Choosing a token raises the coverage of a few
columns j only, and every gain falls by exactly `omega_j (clip(kappa_ij, old_j, new_j) - old_j)` over these. Summed in
float64, this keeps all gains exact for about N^2 log K operations instead of N^2 K. Rows serve as columns, since the
kernel is symmetric, and are squared when they are read: there is no second N x N matrix.
"""

import torch
from torch import Tensor

from covist.method.checks import require, require_count, require_shape

TIE = 1e-12
"""Gains closer than this, of a total mass of one, are equal; the lowest index wins."""
ROW_BLOCK = 256
"""Rows handled at once where all N matter."""
RISEN_BLOCK = 128
"""Columns settled per launch on an accelerator, where shapes must not depend on data."""


def greedy_coverage(affinity: Tensor, omega: Tensor, start: Tensor, count: int) -> Tensor:
    """Grow the tokens `start` [any] greedily to `count` tokens by F of Eq. 5 -> chosen [N] bool.

    affinity: symmetric s [N, N]; the kernel is its square. omega: coverage weights [N].
    """
    require_shape("greedy_coverage", "affinity", affinity, (omega.shape[0], omega.shape[0]))
    require_count("greedy_coverage", count, omega.shape[0])
    require(start.shape[0] <= count, "greedy_coverage", f"start has more than {count} tokens: {start.shape[0]}")
    search = _Search(affinity, omega, start)
    if affinity.device.type == "cpu":
        search.grow(count - start.shape[0])
    else:
        search.grow_on_device(count - start.shape[0])
    return search.chosen


class _Search:
    """Chosen tokens, the coverage that `gains` account for, and the gain of every token still free (else -inf)."""

    def __init__(self, affinity: Tensor, omega: Tensor, start: Tensor):
        precise = torch.float32 if affinity.device.type == "mps" else torch.float64  # mps has no float64
        self.affinity, self.omega = affinity, omega.to(precise)
        self.chosen = torch.zeros_like(omega, dtype=torch.bool)
        self.chosen[start] = True
        self.covered = coverage(affinity, start).to(precise)
        blocks = [self._gains_of(rows) for rows in affinity.split(ROW_BLOCK)]
        self.gains = torch.cat(blocks).masked_fill_(self.chosen, -torch.inf)

    def _gains_of(self, rows: Tensor) -> Tensor:
        """Gains from scratch: rows of s [b, N] -> [b]."""
        return rows.to(self.omega.dtype).square_().sub_(self.covered).clamp_(min=0) @ self.omega

    def _settle(self, risen: Tensor, raised: Tensor) -> None:
        """Raise the accounted coverage of the columns `risen` [r] to `raised` [r] and lower the gains by their part."""
        old = self.covered[risen]
        kernel = self.affinity.index_select(0, risen).to(self.omega.dtype).square_()  # [r, N]
        lost = kernel.clamp_(old[:, None], raised[:, None]).sub_(old[:, None])
        self.gains -= self.omega[risen] @ lost
        self.covered[risen] = raised

    def _best(self) -> Tensor:
        return (self.gains >= self.gains.max() - TIE).int().argmax()

    def grow(self, steps: int) -> None:
        """Shapes follow the data: as many columns per step as really rose."""
        for _ in range(steps):
            best = self._best()
            self.chosen[best] = True
            self.gains[best] = -torch.inf
            kernel = self.affinity[best].to(self.omega.dtype).square_()
            risen = (kernel > self.covered).nonzero()[:, 0]
            self._settle(risen, kernel[risen])

    def grow_on_device(self, steps: int) -> None:
        """The same search without a host read per step: shapes are fixed, the device decides what happens.

        Every round settles the columns that rose most; only when none is left does the round choose a token. A host
        read after each batch of rounds tells how many tokens are still to be chosen.
        """
        size = self.covered.shape[0]
        target = self.covered.clone()
        missing = torch.full((), steps, device=target.device)
        while (rounds := int(missing)) > 0:
            for _ in range(rounds):
                risen = (target - self.covered).topk(min(RISEN_BLOCK, size)).indices
                self._settle(risen, target[risen])
                best = self._best()
                choose = (self.covered == target).all() & (missing > 0)
                self.chosen[best] = self.chosen[best] | choose
                self.gains.masked_fill_(self.chosen, -torch.inf)
                kernel = self.affinity[best].to(target.dtype).square_()
                target = torch.where(choose, torch.maximum(target, kernel), target)
                missing -= choose.to(missing.dtype)


def coverage(affinity: Tensor, tokens: Tensor) -> Tensor:
    """Kernel coverage of every token [N] by `tokens` [any]; zero without any."""
    if tokens.shape[0] == 0:
        return affinity.new_zeros(affinity.shape[0])
    best = [affinity.index_select(0, part).amax(0) for part in tokens.split(ROW_BLOCK)]
    return torch.stack(best).amax(0).square()


def fill_reserve(affinity: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Add to `chosen` [N] bool, one by one, `count` tokens with the largest gap `1 - max_i kappa_ij`."""
    if count == 0:
        return chosen
    chosen = chosen.clone()
    covered = coverage(affinity, chosen.nonzero()[:, 0])
    for _ in range(count):
        best = covered.masked_fill(chosen, torch.inf).argmin()
        chosen[best] = True
        covered = torch.maximum(covered, affinity[best].square())
    return chosen
