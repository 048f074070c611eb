"""State-conditioned attention: the distance factor and bias of Eq. 9 and the head gains of Eq. 10."""

from collections.abc import Sequence

import torch
from torch import Tensor

from covist.checks import require, require_shape
from covist.formulas.ops import EPSILON, mass_norm, share_groups

PRODUCTS_AT_ONCE = 2**22


class DistanceTable:
    """log(2 - D(|p_q - p_i|)) of Eq. 9 by table lookup, for one or several rotary axes.

    inverse_frequencies: theta [r] of the host model. axes: for multidimensional RoPE the axis of each frequency [r];
    positions then have one component per axis. Tables hold every integer distance up to the largest seen so far.
    """

    def __init__(self, inverse_frequencies: Tensor, axes: Tensor | Sequence[int] | None = None, size: int = 4096):
        self.inverse_frequencies = inverse_frequencies.detach().double().cpu()
        require_shape("DistanceTable", "inverse_frequencies", self.inverse_frequencies, (None,))
        count = self.inverse_frequencies.shape[0]
        self.axes = torch.zeros(count, dtype=torch.long) if axes is None else torch.as_tensor(axes).long().cpu()
        require_shape("DistanceTable", "axes", self.axes, (count,))
        self.multidimensional = axes is not None
        self._size = size
        self._tables: dict[torch.device, Tensor] = {}

    def log_factor(self, query_positions: Tensor, key_positions: Tensor, limit: int | None = None) -> Tensor:
        """Positions [..., q] and [..., k] (with a last dimension of axes if there are several) -> [..., q, k].

        Positions that count in fractions (time, in omni models) are taken at the nearest whole distance.
        limit: a bound on the distances, if the caller knows one; otherwise it is computed from the positions.
        """
        if limit is None:
            distances = self._distances(query_positions, key_positions)
            limit = max(int(distance.max()) for distance in distances) if distances[0].numel() else 0
        return self.log_factor_in(self.covering(limit, query_positions.device), query_positions, key_positions)

    def log_factor_in(self, tables: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """`log_factor` by tables [axes, size] that are known to be large enough; nothing is read from the device."""
        distances = self._distances(query_positions, key_positions)
        if not self.multidimensional:
            return tables[0][distances[0]]
        # The last axes of a short head may have no frequency left.
        shares = [table[distance] for table, distance in zip(tables, distances, strict=False)]
        return torch.log(2 - torch.stack(shares).sum(0))

    def _distances(self, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, ...]:
        """Whole distances on each axis, [..., q, k] each."""
        if self.multidimensional:
            distances = (query_positions[..., :, None, :] - key_positions[..., None, :, :]).abs().unbind(-1)
        else:
            distances = ((query_positions[..., :, None] - key_positions[..., None, :]).abs(),)
        if query_positions.is_floating_point():
            return tuple(distance.round().long() for distance in distances)
        return distances

    def covering(self, limit: int, device: torch.device) -> Tensor:
        """[axes, size]: the share of each axis in D, or log(2 - D) itself if there is only one axis."""
        table = self._tables.get(device)
        if table is None or table.shape[1] <= limit:
            size = max(self._size, 2 * limit + 1 if limit >= self._size else 0)  # twice as far: growth is rare
            distances = torch.arange(size, dtype=torch.float64)
            waves = torch.cos(distances[:, None] * self.inverse_frequencies) / self.inverse_frequencies.shape[0]
            shares = torch.zeros(int(self.axes.max()) + 1, size, dtype=torch.float64)
            shares.index_add_(0, self.axes, waves.T.contiguous())
            table = (shares if self.multidimensional else torch.log(2 - shares)).float().to(device)
            # Another thread may have built a larger one meanwhile; each uses its own, which covers what it needs.
            self._size, self._tables[device] = size, table
        return table


def projection_energy(query_norms: Tensor, key_norms: Tensor) -> Tensor:
    """E of one layer [heads, dh / 2] from the row norms of its projections, [heads, dh] and [kv heads, dh].

    Rows r and r + dh/2 form a rotary pair (`rotary.in_halves`). Query heads share the key rows of their group.
    """
    require_shape("projection_energy", "key_norms", key_norms, (None, query_norms.shape[-1]))
    require(query_norms.shape[0] % key_norms.shape[0] == 0, "projection_energy", "heads must be a multiple of kv heads")
    pairs = [torch.hypot(*norms.double().chunk(2, dim=-1)) for norms in (query_norms, key_norms)]
    return pairs[0] * share_groups(pairs[1], query_norms.shape[0])


def head_frequency(energy: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """nu of Eq. 10: the mean rotary frequency of a head, [heads, r] -> [heads]; a pruned head weights all equally."""
    return mass_norm(energy) @ inverse_frequencies.to(energy)


def head_gains(
    energies: Sequence[Tensor | None],
    inverse_frequencies: Sequence[Tensor | None],
    gain_range: tuple[float, float] = (0.6, 1.4),
) -> Tensor:
    """Eq. 10: gains [layers, heads] from the energies [heads, r] and frequencies [r] of all layers; extrema over all.

    A layer without rotary has no energy (None): its gain is 1, and the extrema ignore it.
    """
    frequencies = {
        layer: head_frequency(energy.double(), theta)
        for layer, (energy, theta) in enumerate(zip(energies, inverse_frequencies, strict=True))
        if energy is not None and theta is not None
    }
    require(len(frequencies) > 0, "head_gains", "no layer has rotary positions")
    rotated = torch.stack(list(frequencies.values()))  # [rotated layers, heads]
    low, high = gain_range
    relative = (rotated - rotated.min()) / (rotated.max() - rotated.min() + EPSILON)
    gains = torch.ones(len(energies), rotated.shape[1], dtype=torch.float64, device=rotated.device)
    gains[list(frequencies)] = low + (high - low) * relative
    return gains.float()


def log_contribution(log_weights: Tensor, log_factor: Tensor | float = 0.0) -> Tensor:
    """log[m_i (2 - D)] of Eq. 9: log m [..., 1, k] and log(2 - D) [..., q, k] -> [..., q, k]."""
    return log_weights + log_factor


def attention_bias(scale: Tensor, contribution: Tensor, mask: Tensor) -> Tensor:
    """Eq. 9 on top of an additive mask: scale u_l g_lh [heads], the others [..., 1, q, k] -> [..., heads, q, k]."""
    return torch.addcmul(mask, contribution, scale.view(-1, 1, 1))


def mean_attention(queries: Tensor, keys: Tensor, scale: float | None = None) -> Tensor:
    """Attention to the keys [K], averaged over all heads and queries.

    queries: [heads, T, dh]; keys: [heads or kv heads, K, dh]; scale: of the logits, if not dh^-1/2. Long texts are
    processed in parts: heads x T x K numbers would be more than a layer of the decoder needs.
    """
    heads, tokens, width = queries.shape
    shared = share_groups(keys.float(), heads).mT
    part = max(1, PRODUCTS_AT_ONCE // (heads * keys.shape[1]))
    total = torch.zeros(keys.shape[1], dtype=torch.float32, device=keys.device)
    for some in queries.float().split(part, dim=1):
        logits = some @ shared * (width**-0.5 if scale is None else scale)  # [heads, part, K]
        total += torch.softmax(logits, dim=-1).sum((0, 1))
    return total / (heads * tokens)
