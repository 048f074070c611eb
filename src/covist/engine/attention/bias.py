"""The bias of Eq. 9 before the gains of layer and head, for the keys of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.engine.sequence.ledger import Keys
from covist.formulas.attention import DistanceTable, log_contribution


@dataclass(frozen=True)
class Terms:
    """Which terms of Eq. 9 a layer adds; layers with equal terms differ only in their gains."""

    weights: bool
    mean_weights: bool
    distance: DistanceTable | None
    all_keys: bool  # whether text takes the distance factor, too

    @classmethod
    def of(cls, rule: AttentionRule, layer: int) -> Terms:
        distance = None if rule.distances is None else rule.distances[layer]
        return cls(rule.weights, layer in rule.mean_weights, distance, rule.distance_keys == "all")

    def log_weights(self, keys: Keys) -> Tensor:
        """[batch, keys]: log m as the layer takes it."""
        if not self.weights:
            return torch.zeros_like(keys.log_weight)
        return mean_log_weights(keys) if self.mean_weights else keys.log_weight

    def takes_distance(self, keys: Keys) -> Tensor:
        """[batch, keys] bool: keys that take the distance factor.

        If all keys do, these are the keys of a prompt with a reduced image; other prompts run as in the plain model.
        """
        return keys.visual.any(1, keepdim=True).expand_as(keys.visual) if self.all_keys else keys.visual

    def bias(self, keys: Keys, queries: Tensor, reach: int) -> Tensor:
        """[batch, 1, queries or 1, keys] for queries at positions [batch, queries(, axes)]; no distance is beyond
        `reach`."""
        factor: Tensor | float = 0.0
        if self.distance is not None:
            factor = self.distance.log_factor(queries, keys.positions, reach)
            factor = factor.masked_fill_(~self.takes_distance(keys)[:, None], 0.0)
        return log_contribution(self.log_weights(keys)[:, None], factor)[:, None]


def mean_log_weights(keys: Keys) -> Tensor:
    """[batch, keys]: log of the mean weight of the image that a key belongs to, 0 for text."""
    result = torch.zeros_like(keys.log_weight)
    for number in range(int(keys.image.max()) + 1):
        member = keys.image == number
        mean = (keys.log_weight.exp() * member).sum(1) / member.sum(1).clamp(min=1)
        result = torch.where(member, mean.clamp(min=1e-8).log()[:, None], result)
    return result
