"""FitPrune's calibration: how many tokens each layer can lose if its attention may change by a given share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

STEPS = 30  # of the binary search


@dataclass(frozen=True)
class Mass:
    """The attention that the tokens of some images receive from one side, in each layer except the last."""

    received: Tensor  # [images, layers - 1, tokens], zero after an image's last token

    @cached_property
    def order(self) -> Tensor:
        """The tokens in increasing order of received attention, [images, layers - 1, tokens]."""
        return self.received.argsort(dim=2, stable=True)

    def spares(self, layer: int, there: Tensor, alpha: float) -> Tensor:
        """Which of the tokens `there` [images, tokens] can be removed, those that receive least first, while the others
        still receive 1 - alpha of what all tokens of the image receive in that layer."""
        received, order = self.received[:, layer], self.order[:, layer]
        whole, left = received.sum(1, keepdim=True), (received * there).gather(1, order)
        lost = whole - left.sum(1, keepdim=True) + left.cumsum(1)  # if a token and all that receive less are removed
        return torch.zeros_like(there).scatter(1, order, lost <= alpha * whole) & there


@dataclass(frozen=True)
class Attended:
    """The attention that the tokens of some images receive from the text and from the image itself."""

    cross: Mass
    internal: Mass
    there: Tensor  # [images, tokens] bool, False after an image's last token

    @classmethod
    def of(cls, images: Sequence[tuple[Tensor, Tensor]]) -> Attended:
        """From (cross, internal) of each image, [layers - 1, N] each."""
        cross, internal = (
            Mass(pad_sequence([image[side].double().T for image in images], batch_first=True).transpose(1, 2))
            for side in (0, 1)
        )
        sizes = torch.tensor([image[0].shape[1] for image in images])
        return cls(cross, internal, torch.arange(int(sizes.max())) < sizes[:, None])

    @property
    def layers(self) -> int:
        return self.cross.received.shape[1] + 1

    def kept_shares(self, alpha: float) -> Tensor:
        """Share of the tokens that each layer sees [layers], mean over images; what both sides can spare is removed."""
        there, seen = self.there, [self.there]
        for layer in range(self.layers - 1):
            there = there & ~(self.cross.spares(layer, there, alpha) & self.internal.spares(layer, there, alpha))
            seen.append(there)
        return torch.stack([(one.sum(1) / self.there.sum(1)).mean() for one in seen])

    def fit(self, share: float) -> tuple[float, list[float]]:
        """The smallest alpha for which layers see a mean `share` of the tokens or less, and the share of each layer."""
        low, high = 0.0, 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if float(self.kept_shares(middle).mean()) > share else (low, middle)
        return high, self.kept_shares(high).tolist()
