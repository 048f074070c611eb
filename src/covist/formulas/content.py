"""How much of an image's content some of its tokens cover, by features alone: whatever is asked, whatever the method.

CoViST-Max selects by it (docs/max.md), and the images of a prompt share a budget by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from covist.checks import require_affordable, require_finite
from covist.formulas.adaptive import greedy_order
from covist.formulas.ops import gram, mass_norm, unit_rows

ROUNDING = 1e-4
"""Added to D, so that an image whose tokens differ only by rounding counts as uniform."""


@dataclass(frozen=True, eq=False)
class ContentCoverage:
    """What the coverage of an image depends on: s [N, N], and omega [N] with sum one; and D [], how much it shows.

    Of several images with equally many tokens, it holds the same with one more dimension in front.
    """

    affinity: Tensor
    omega: Tensor
    spread: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "ContentCoverage":
        """Affinity and coverage weights from features [..., N, v]."""
        require_affordable("coverage", features.shape[-2])
        require_finite("coverage", features=features)
        distances = gram(unit_rows(features)).neg_().add_(1).clamp_(min=0)  # [..., N, N]
        farthest = distances.amax(-1).mean(-1) + ROUNDING  # D, [...]
        affinity = distances.mul_((-2 / farthest)[..., None, None]).exp_()
        affinity.diagonal(dim1=-2, dim2=-1).fill_(1)  # exact, despite rounding
        share = torch.einsum("...ij,...ij->...i", affinity, affinity).reciprocal()
        return cls(affinity, mass_norm(share), farthest)

    @property
    def of_several(self) -> "ContentCoverage":
        """The same with a dimension of images in front."""
        return ContentCoverage(self.affinity[None], self.omega[None], self.spread[None])

    def growth(self) -> Iterator[tuple[int, float]]:
        """Tokens in the order in which greedy coverage takes them, each with what it adds to D times coverage.

        Coverage is a share of what the image shows, and of a blank image that is next to nothing. D, the distance
        between its contents, makes the gains of different images comparable.
        """
        before, spread = 0.0, float(self.spread)
        for token, coverage in greedy_order(self.affinity, self.omega):
            yield token, spread * (coverage - before)
            before = coverage
