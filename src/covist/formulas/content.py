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
    def of(cls, features: Tensor, frames: int = 1, sizes: Tensor | None = None) -> "ContentCoverage":
        """Affinity and coverage weights from features [..., N, v].

        frames: of a video, one after the other, all with the same places; an image is a single one
        sizes: how many tokens with these features each of them stands for, [N]; one, if it is not given. Copies of a
            token and one token of their number have the same coverage.
        """
        require_affordable("coverage", features.shape[-2])
        require_finite("coverage", features=features)
        distances = gram(unit_rows(features)).neg_().add_(1).clamp_(min=0)  # [..., N, N]
        reach = distances.amax(-1)  # [..., N]
        farthest = (reach.mean(-1) if sizes is None else reach @ mass_norm(sizes)) + ROUNDING  # D, [...]
        logarithm = distances.mul_((-2 / farthest)[..., None, None])
        if frames > 1:
            times = torch.arange(frames, device=features.device) / frames
            apart = (times[:, None] - times).abs()
            logarithm.unflatten(-1, (frames, -1)).unflatten(-3, (frames, -1)).sub_(2 * apart[:, None, :, None])
        affinity = logarithm.exp_()
        affinity.diagonal(dim1=-2, dim2=-1).fill_(1)  # exact, despite rounding
        if sizes is None:
            share = torch.einsum("...ij,...ij->...i", affinity, affinity).reciprocal()
        else:
            share = sizes / (affinity.square() @ sizes)
        if frames > 1:
            share *= novelty(affinity, features.shape[-2] // frames)
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


def novelty(affinity: Tensor, places: int) -> Tensor:
    """How much of each token [..., N] of a video one of the frames beside it does not show at the same place.

    One minus the affinity to the frame before or after, whichever is less like it. Before the first frame and after the
    last one nothing shows it, so both count in full. affinity: [..., N, N]; places: tokens of a frame
    """
    to_next = affinity.diagonal(places, dim1=-2, dim2=-1)  # [..., N - places]
    nothing = to_next.new_zeros(*to_next.shape[:-1], places)
    return 1 - torch.minimum(torch.cat([nothing, to_next], -1), torch.cat([to_next, nothing], -1))
