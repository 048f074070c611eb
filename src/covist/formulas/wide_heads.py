"""Eq. 9 without a mask: a few extra head dimensions of queries and keys carry the bias through any attention kernel.

A kernel without a bias argument still computes `scaling * q . k`. The weight term of Eq. 9 is the product of a number
per query head (u g) and a number per key (log m), and a cosine of a distance is a sum of two such products,

    cos(w (p_q - p_i)) = cos(w p_q) cos(w p_i) + sin(w p_q) sin(w p_i),

so a short cosine series can replace log(2 - D). The weight term is exact; the distance term is as accurate as the
series, and `cosine_series.error_bound` bounds its error. The extra columns of a head:

    query:  u g / scaling * [ 1,          1,     cos w_1 p,      sin w_1 p,      ... ]
    key:                    [ x rounded,  rest,  a_1 cos w_1 p,  a_1 sin w_1 p,  ... ]      x = log m + constant

Values get zeros, and the output is cut back to its own dimensions. Keys without a bias get zeros too, so their logits
stay as they were. `x` is split in two so that half precision carries it as precisely as the bias itself.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.checks import require
from covist.formulas.cosine_series import REACH, CosineSeries

COLUMNS = 8  # flash attention takes head dimensions in multiples of 8
WEIGHT_COLUMNS = 2


def terms_in(columns: int) -> int:
    """How many cosines fit beside the weight."""
    return (columns - WEIGHT_COLUMNS) // 2


def widen(states: Tensor, columns: Tensor) -> Tensor:
    """States [..., heads, n, d] followed by columns [..., heads or 1, n, c]: [..., heads, n, d + c]."""
    return torch.cat([states, columns.to(states).expand(*states.shape[:-1], -1)], -1)


class WideHeads:
    """The codec: weights and positions as extra columns of queries and keys.

    series: replaces the distance factor. columns: how many to add, a multiple of 8.
    Positions always have a last dimension of rotary axes, even if there is only one axis.
    """

    def __init__(self, series: CosineSeries, columns: int = COLUMNS):
        require(columns > 0 and columns % 8 == 0, "WideHeads", f"columns must be a multiple of 8, got {columns}")
        require(
            series.terms <= terms_in(columns),
            "WideHeads",
            f"{columns} columns hold {terms_in(columns)} cosines, but the series has {series.terms}",
        )
        self.series, self.columns = series, columns
        self._unused = columns - WEIGHT_COLUMNS - 2 * series.terms
        self._size = REACH
        self._tables: dict[torch.device, Tensor] = {}

    def key_columns(self, log_weight: Tensor, positions: Tensor, biased: Tensor, limit: int | None = None) -> Tensor:
        """[..., k, columns] in float32, the same for all heads.

        log_weight: log m of visual keys and 0 elsewhere, [..., k]. positions: [..., k, axes]. biased: which keys take
        the distance factor, [..., k]. limit: a bound on the positions, if the caller knows one; otherwise it is read.
        """
        weight = log_weight.float() + self.series.constant * biased
        rounded = weight.bfloat16().float()  # exact in the other types of kernels, too
        waves = self._waves(positions, limit) * self.series.amplitudes.to(weight).repeat_interleave(2)
        split = torch.stack([rounded, weight - rounded], -1)
        return F.pad(torch.cat([split, waves * biased[..., None]], -1), (0, self._unused))

    def query_waves(self, positions: Tensor, limit: int | None = None) -> Tensor:
        """The part of the query columns that all layers share, [..., q, columns], from positions [..., q, axes]."""
        waves = F.pad(self._waves(positions, limit), (WEIGHT_COLUMNS, self._unused))
        waves[..., :WEIGHT_COLUMNS] = 1
        return waves

    def query_columns(self, scale: Tensor, waves: Tensor, scaling: float) -> Tensor:
        """[..., heads, q, columns] in float32 for a kernel that multiplies by `scaling`.

        scale: u_l g_lh of the layer, [heads]. waves: `query_waves` of the queries.
        """
        return waves[..., None, :, :] * (scale.to(waves) / scaling)[:, None, None]

    def _waves(self, positions: Tensor, limit: int | None) -> Tensor:
        """[..., n, 2 terms] in float32: cosine and sine of each term's angle at positions [..., n, axes]."""
        along = positions[..., self.series.axes.to(positions.device)].clamp(min=0)  # padding may have any position
        if limit is None:
            limit = int(along.max()) if along.numel() else 0
        table = self._covering(limit, positions.device)
        return table[along, torch.arange(self.series.terms, device=positions.device)].flatten(-2)

    def _covering(self, limit: int, device: torch.device) -> Tensor:
        """[size, terms, 2]: angles are computed in float64 once, so that far positions lose no precision."""
        if device not in self._tables or len(self._tables[device]) <= limit:
            if limit >= self._size:  # twice as far, so that a growing sequence rebuilds rarely
                self._size = 2 * limit + 1
            angles = torch.arange(self._size, dtype=torch.float64)[:, None] * self.series.frequencies
            self._tables[device] = torch.stack([angles.cos(), angles.sin()], -1).float().to(device)
        return self._tables[device]
