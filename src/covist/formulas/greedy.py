"""Greedy coverage (Eq. 5) and the coverage-gap reserve.

The gain of token i is `sum_j omega_j max(kappa_ij - covered_j, 0)`. Choosing a token raises the coverage of a few
columns j only, and every gain falls by exactly `omega_j (clip(kappa_ij, old_j, new_j) - old_j)` over these. Summed in
float64, this keeps all gains exact for about N^2 log K operations instead of N^2 K. Rows serve as columns, since the
kernel is symmetric, and coverage is kept in units of s, whose square is the kernel: there is no second N x N matrix.
"""

import torch
from torch import Tensor

from covist.checks import require, require_count, require_shape
from covist.formulas.ops import first_largest

TIE = 1e-12
"""Gains closer than this, of a total mass of one, are equal; the lowest index wins."""
BLOCK = 256
"""Rows of the affinity handled at once."""
DEVICE_BLOCK = 128
"""Columns settled per round on an accelerator, where shapes must not depend on data."""


def greedy_coverage(affinity: Tensor, omega: Tensor, start: Tensor, count: int) -> Tensor:
    """Grow the distinct tokens `start` [any] greedily to `count` tokens by F of Eq. 5 -> chosen [N] bool.

    affinity: symmetric s [N, N]; the kernel is its square. omega: coverage weights [N].
    """
    require_shape("greedy_coverage", "affinity", affinity, (omega.shape[0], omega.shape[0]))
    require_count("greedy_coverage", count, omega.shape[0])
    require(start.shape[0] <= count, "greedy_coverage", f"start has more than {count} tokens: {start.shape[0]}")
    if affinity.device.type == "mps":  # which has no float64
        return greedy_coverage(affinity.cpu(), omega.cpu(), start.cpu(), count).to(affinity.device)
    search = _Search(affinity, omega, start)
    grow = search.grow if affinity.device.type == "cpu" else search.grow_on_device
    grow(count - start.shape[0])
    return search.chosen


class _Search:
    """The tokens chosen so far, the coverage in units of s that `gains` account for, and the gains.

    Gains carry a common offset, which no comparison sees, and are -inf for chosen tokens.
    """

    def __init__(self, affinity: Tensor, omega: Tensor, start: Tensor):
        self.affinity, self.omega = affinity, omega.double()
        self.chosen = torch.zeros_like(omega, dtype=torch.bool)
        self.chosen[start] = True
        self.covered = _largest(affinity, start)
        # max(s, covered)^2 without subtracting covered^2, the first offset: a float32 difference would be rounded
        blocks = [torch.maximum(rows, self.covered).square_().double() @ self.omega for rows in affinity.split(BLOCK)]
        self.gains = torch.cat(blocks).masked_fill_(self.chosen, -torch.inf)

    def _settle(self, risen: Tensor, target: Tensor) -> None:
        """Account for the coverage of the columns `risen` [r], which is now `target` [N]."""
        rows = self.affinity.index_select(0, risen)  # [r, N]
        torch.maximum(rows, self.covered.index_select(0, risen)[:, None], out=rows)
        torch.minimum(rows, target.index_select(0, risen)[:, None], out=rows)
        kernel = rows.mul_(rows).double()
        self.gains.addmv_(kernel.t(), self.omega.index_select(0, risen), alpha=-1)

    def grow(self, steps: int) -> None:
        """Shapes follow the data: as many columns per step as really rose."""
        picks = []
        for _ in range(steps):
            values, tokens = (top.tolist() for top in self.gains.topk(min(2, self.gains.shape[0])))
            tied = values[0] - values[-1] <= TIE
            pick = int(first_largest(self.gains, TIE)) if tied else tokens[0]
            picks.append(pick)
            self.gains[pick] = -torch.inf
            target = torch.maximum(self.covered, self.affinity[pick])
            risen = (target > self.covered).nonzero().view(-1)
            for block in risen.split(BLOCK) if risen.shape[0] > BLOCK else (risen,):
                self._settle(block, target)
            self.covered = target
        self.chosen[picks] = True

    def grow_on_device(self, steps: int) -> None:
        """The same search without a host read per step: shapes are fixed, the device decides what happens.

        Every round settles the columns that rose most; only when none is left does it choose a token. As many rounds as
        tokens are missing can never choose too many; one host read after them tells how many are missing still.
        """
        target = self.covered.clone()
        missing = torch.full((), steps, device=target.device)
        while (rounds := int(missing)) > 0:
            for _ in range(rounds):
                risen = (target - self.covered).topk(min(DEVICE_BLOCK, target.shape[0])).indices
                self._settle(risen, target)
                self.covered.index_copy_(0, risen, target.index_select(0, risen))
                pick = first_largest(self.gains, TIE)[None]
                choose = (self.covered == target).all()
                self.chosen.index_copy_(0, pick, self.chosen.index_select(0, pick) | choose)
                self.gains.masked_fill_(self.chosen, -torch.inf)
                raised = torch.maximum(target, self.affinity.index_select(0, pick)[0])
                target = torch.where(choose, raised, target)
                missing -= choose.to(missing.dtype)


def _largest(affinity: Tensor, tokens: Tensor) -> Tensor:
    """The largest affinity of every token [N] to `tokens` [any]; zero without any."""
    best = [affinity.index_select(0, part).amax(0) for part in tokens.split(BLOCK) if part.shape[0]]
    return torch.stack(best).amax(0) if best else affinity.new_zeros(affinity.shape[0])


def fill_reserve(affinity: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Add to `chosen` [N] bool, one by one, `count` tokens with the largest gap `1 - max_i kappa_ij`.

    The kernel is the square of s, so the gap is largest where the largest affinity is smallest.
    """
    chosen = chosen.clone()
    largest = _largest(affinity, chosen.nonzero()[:, 0]).masked_fill_(chosen, torch.inf)
    for _ in range(count):
        pick = largest.argmin()[None]
        chosen.index_fill_(0, pick, True)
        largest = torch.maximum(largest, affinity.index_select(0, pick)[0]).index_fill_(0, pick, torch.inf)
    return chosen
