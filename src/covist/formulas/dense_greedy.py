"""Greedy coverage (Eq. 5) for accelerators, where launching work and waiting for it cost more than the work itself.

It has the same result as the sparse loop of `greedy.py`, for one image or for several of equal size at once, launches
a number of operators that does not depend on the number of images, and reads nothing back.

Contributions are rounded down to whole units, of which all weights together have 2^51. Sums of whole numbers below
2^53 are exact in float64, whatever their order, so gains that are equal on paper are equal, and the lowest index wins.
"""

import warnings

import torch
from torch import Tensor

MOST_TOKENS = 4096
"""Of an image in the kernel: its gains, coverage and weights must fit into the registers of one program."""
UNITS = 2.0**51
"""What all coverage weights together come to."""
OWN_UNITS = 2.0**31
"""Added to every token's coverage of itself, so that chosen tokens gain less than others; about 1e-6 of the total."""


def grow_on_device(affinity: Tensor, omega: Tensor, start: Tensor, steps: int) -> Tensor:
    """The next tokens of greedy coverage [..., steps], after the distinct tokens `start` [..., any].

    affinity: symmetric s [..., N, N]; omega: coverage weights [..., N] with sum one.
    """
    units = omega.double() * UNITS
    grown = _KERNEL.grow(affinity, units, start, steps)
    return grow_in_loop(affinity, units, start, steps) if grown is None else grown


def grow_in_loop(affinity: Tensor, units: Tensor, start: Tensor, steps: int) -> Tensor:
    """Four operators per step: every gain is computed from scratch. `units` [..., N] are the weights, in float64."""
    # row i: the coverage that the tokens chosen so far would have together with i
    raised = affinity.double().square_().mul_(units[..., None, :]).floor_()
    raised.diagonal(dim1=-2, dim2=-1).add_(OWN_UNITS)
    if start.shape[-1]:
        torch.maximum(raised, _rows(raised, start).amax(-2, keepdim=True), out=raised)
    picks: list[Tensor] = []  # [..., 1] each
    for _ in range(steps):
        if picks:
            torch.maximum(raised, _rows(raised, picks[-1]), out=raised)
        picks.append(raised.sum(-1).argmax(-1, keepdim=True))
    return torch.cat(picks, -1) if picks else start[..., :0]


class _Kernel:
    """The same loop as one kernel, where Triton and a GPU are present; until it fails for the first time."""

    usable = True

    def grow(self, affinity: Tensor, units: Tensor, start: Tensor, steps: int) -> Tensor | None:
        """What `grow_in_loop` returns; None if there is no kernel for these."""
        if not self.usable or not affinity.is_cuda or affinity.shape[-1] > MOST_TOKENS:
            return None
        try:
            from covist.formulas.greedy_kernel import grow_in_kernel

            return grow_in_kernel(affinity, units, start, steps)
        except torch.OutOfMemoryError:
            raise
        except ImportError:
            self.usable = False
        except Exception as error:  # Triton compiles at the first call, and may lack a compiler
            self.usable = False
            warnings.warn(f"greedy coverage runs without its Triton kernel: {error}", stacklevel=2)
        return None


_KERNEL = _Kernel()


def _rows(matrix: Tensor, tokens: Tensor) -> Tensor:
    """The rows `tokens` [..., k] of [..., N, N] -> [..., k, N]."""
    return matrix.gather(-2, tokens[..., None].expand(*tokens.shape, matrix.shape[-1]))
