"""Greedy coverage (Eq. 5) and the coverage-gap reserve.

The gain of token i is `sum_j omega_j max(kappa_ij - covered_j, 0)`. There are two loops with the same result.

The sparse loop, for a CPU: choosing a token raises the coverage of only a few columns j, and every gain falls by
exactly the sum of `omega_j (clip(kappa_ij, old_j, new_j) - old_j)` over these. Summed in float64, this keeps all gains
exact for about N^2 log K operations instead of N^2 K. Rows serve as columns, since the kernel is symmetric, and
coverage is kept in units of s, whose square is the kernel, so there is no second N x N matrix.

The dense loop, for an accelerator, is in `dense_greedy.py`.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import islice

import torch
from torch import Tensor

from covist.checks import require, require_count, require_shape
from covist.formulas.dense_greedy import grow_on_device
from covist.formulas.ops import first_largest

DENSE: bool | None = None
"""Which loop grows the set: dense (True), sparse (False), or the one that suits the device (None)."""
TIE = 1e-12
"""Gains that differ by less than this, of a total of one, count as equal; the lowest index wins."""
BLOCK = 256
"""Rows of the affinity handled at once."""

Claim = Callable[[int, Tensor], int | None]


def is_dense(device: torch.device) -> bool:
    """Whether the dense loop suits a device. Images are then best handled together, too."""
    return device.type != "cpu" if DENSE is None else DENSE


def greedy_coverage(affinity: Tensor, omega: Tensor, start: Tensor, count: int) -> Tensor:
    """Grow the distinct tokens `start` [any] greedily to `count` tokens by F of Eq. 5 -> chosen [N] bool.

    affinity: symmetric s [N, N]; the kernel is its square. omega: coverage weights [N].
    """
    tokens = greedy_tokens(affinity, omega, start, count)
    return torch.zeros_like(omega, dtype=torch.bool).index_fill_(0, tokens, True)


def greedy_tokens(affinity: Tensor, omega: Tensor, start: Tensor, count: int) -> Tensor:
    """The same as tokens [..., count] in the order in which they are taken, of one image or of several at once.

    affinity: [..., N, N]; omega: [..., N]; start: [..., any].
    """
    require_shape("greedy_coverage", "affinity", affinity, (*omega.shape, omega.shape[-1]))
    require_count("greedy_coverage", count, omega.shape[-1])
    require(start.shape[-1] <= count, "greedy_coverage", f"start has more than {count} tokens: {start.shape[-1]}")
    if affinity.device.type == "mps":  # it has no float64
        return greedy_tokens(affinity.cpu(), omega.cpu(), start.cpu(), count).to(affinity.device)
    if not is_dense(affinity.device) and omega.dim() > 1:
        return torch.stack([greedy_tokens(*one, count) for one in zip(affinity, omega, start, strict=True)])
    grow = grow_on_device if is_dense(affinity.device) else _grow
    grown = grow(affinity, omega, start, count - start.shape[-1])
    return torch.cat([start, grown], -1) if start.shape[-1] else grown


def _grow(affinity: Tensor, omega: Tensor, start: Tensor, steps: int) -> Tensor:
    """The next tokens of the sparse loop, [steps]."""
    picks = [pick for pick, _ in islice(Search(affinity, omega, start).walk(), steps)]
    return torch.tensor(picks, dtype=torch.long, device=omega.device)


class Search:
    """The sparse loop: each step handles only the columns whose coverage rose, so shapes depend on the data."""

    def __init__(self, affinity: Tensor, omega: Tensor, start: Tensor):
        self.affinity, self.omega, self.start = affinity, omega.double(), start

    def walk(self, claim: Claim | None = None) -> Iterator[tuple[int, Tensor]]:
        """Tokens one by one as the sparse loop takes them, each with the then largest affinity of every token [N].

        claim: returns the token that must be taken next, whatever its gain, or None, given the number of tokens taken
            and the largest affinities.
        Gains have a common offset, which does not affect comparisons, and are -inf for chosen tokens.
        """
        covered = _largest(self.affinity, self.start)
        room = self.omega.new_empty(BLOCK, self.omega.shape[0])
        gains = torch.cat([self._first_gains(rows, covered, room) for rows in self.affinity.split(BLOCK)])
        gains.index_fill_(0, self.start, -torch.inf)
        levels = covered.repeat(2, 1)[..., None]  # coverage before and after a step, alternating: [2, N, 1]
        sides = levels.unbind()
        for step in range(gains.shape[0] - self.start.shape[0]):
            before, after = step % 2, 1 - step % 2
            pick = None if claim is None else claim(step, sides[before][:, 0])
            pick = _first_best(gains) if pick is None else pick
            gains[pick].fill_(-torch.inf)
            torch.maximum(sides[before], self.affinity[pick, :, None], out=sides[after])
            yield pick, sides[after][:, 0]
            risen = (sides[after] > sides[before]).nonzero()[:, 0]
            for block in risen.split(BLOCK) if risen.shape[0] > BLOCK else (risen,):
                bounds = levels.index_select(1, block).unbind()  # [r, 1] each
                self._lower(gains, block, bounds[before], bounds[after], room[: block.shape[0]])

    def _first_gains(self, rows: Tensor, covered: Tensor, room: Tensor) -> Tensor:
        """What the tokens of some `rows` [r, N] cover together with those chosen, [r]; `room` is scratch.

        covered^2, the first offset, is not subtracted: a float32 difference would be rounded.
        """
        raised = torch.maximum(rows, covered)
        return torch.mul(raised, raised, out=room[: rows.shape[0]]) @ self.omega

    def _lower(self, gains: Tensor, risen: Tensor, low: Tensor, high: Tensor, kernel: Tensor) -> None:
        """Lower the `gains` [N] by what columns `risen` [r] gained from `low` to `high`; `kernel` [r, N] is scratch."""
        rows = self.affinity.index_select(0, risen)  # [r, N]
        torch.maximum(rows, low, out=rows)
        torch.minimum(rows, high, out=rows)
        torch.mul(rows, rows, out=kernel)
        gains.addmv_(kernel.t(), self.omega.index_select(0, risen), alpha=-1)


def _first_best(gains: Tensor) -> int:
    values, tokens = (top.tolist() for top in gains.topk(min(2, gains.shape[0])))
    return int(first_largest(gains, TIE)) if values[0] - values[-1] <= TIE else tokens[0]


def _largest(affinity: Tensor, tokens: Tensor) -> Tensor:
    """The largest affinity of every token [N] to `tokens` [any]; zero without tokens."""
    if not tokens.shape[0]:
        return affinity.new_zeros(affinity.shape[0])
    return reduce(torch.maximum, (affinity.index_select(0, part).amax(0) for part in tokens.split(BLOCK)))


def fill_reserve(affinity: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Add to `chosen` [N] bool, one by one, the `count` tokens with the largest gap `1 - max_i kappa_ij`.

    The kernel is the square of s, so the gap is largest where the largest affinity is smallest.
    """
    if not count:
        return chosen
    largest = _largest(affinity, chosen.nonzero()[:, 0]).masked_fill_(chosen, torch.inf)[None]  # [1, N]
    picks = [largest.argmin(1)]
    for _ in range(count - 1):
        largest = torch.maximum(largest, affinity.index_select(0, picks[-1])).index_fill_(1, picks[-1], torch.inf)
        picks.append(largest.argmin(1))
    return chosen.index_fill(0, torch.cat(picks), True)
