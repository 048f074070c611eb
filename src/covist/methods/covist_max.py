"""CoViST-Max, covist's own method beyond the paper: similar tokens share one weight, and representatives are means.

It makes four changes to CoViST-Fixed; docs/max.md has the reasons and the measurements.

1. Affinity `s_ij = exp(-2 d_ij / D)`, with d the cosine distance of encoder features and D the mean over all tokens of
   the distance to the farthest other token. The kernel of Eq. 5 is its square. So the scale of "near" follows from how
   far apart unrelated content is for this tower, and no constant is tuned to one tower.
2. Coverage weights `omega_j = 1 / sum_i s_ij^2` replace Eqs. 3 and 4: tokens that show the same content share their
   weight. A large plain background weighs no more than a few small objects, so no core has to protect the objects. The
   weights do not depend on the count or the question, so a smaller count keeps a subset of what a larger one keeps.
3. The weight of a representative is the number of tokens that it represents, instead of Eq. 7. Without a limit, the
   mass of the background is conserved, and a decoder that counts by shares of attention counts correctly.
4. Its content is the mean of these tokens, instead of Eq. 8.

In a video, time counts like content. With t in units of the whole film (or of its segment), the affinity is
`s_ij = exp(-2 (d_ij / D + |t_i - t_j|))`, so a representative stands for what is alike and near in time, and its
position says when. And omega_j is multiplied by `1 - min(s_j-, s_j+)`, where s_j- and s_j+ are the affinities to the
same place one frame before and after, 0 where the film begins or ends: what stays is said rarely, a change when it
happens, and the first and the last frame tell what was and what remains. A film of one frame is an image.

The attention adds log m in every layer and head (Eq. 9 without distance factor and head gains, which showed no gain).
Two settings exist for engines that offer less: `features=embeddings` and `weights=off`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method, MethodInfo, plain_rule
from covist.contract.views import ImageContext, PerImage
from covist.errors import CovistError
from covist.formulas.adaptive import greedy_order, smallest_prefix
from covist.formulas.composition import correspondence
from covist.formulas.content import ContentCoverage
from covist.formulas.coverage import coverage_share
from covist.formulas.greedy import greedy_coverage
from covist.formulas.ops import partition
from covist.methods.registry import register_method
from covist.methods.shared import cluster_means
from covist.reduction import Reduction
from covist.state import VisualState

Features = Literal["encoder", "embeddings"]


@register_method
class CovistMax(Method):
    name = "covist-max"
    writes_content = True
    measures_coverage = True
    info = MethodInfo(
        paper="none: covist's own, after CoViST",
        acts="before the decoder, and log weight on every attention logit",
        signals="encoder features",
        budget="exactly K in every layer",
        criterion="coverage",
        needs=("encoder-features",),
        published=(
            "The method as a whole is not published. Eqs. 5 and 6 are CoViST's. Coverage whose rows are softmaxes of "
            "encoder cosines is MMTok's: it equals our kernel with weights of one over its sum. Means with log size in "
            "the attention are from ToMe and RESTORE."
        ),
        ours=(
            "The width of the kernel follows from the distances in the image. There is no instruction, no class "
            "attention, no protected core and no limit on the weights. In a video, time joins the distance, and what "
            "the frames beside repeat weighs less."
        ),
        checked="reference: a slow literal version, in tests/reference",
    )

    options = {
        "features": "encoder: compare encoder features; embeddings: what the decoder receives, for engines that "
        "show nothing else",
        "weights": "on: the attention adds the log of a representative's weight; off: it adds nothing, for engines "
        "that cannot carry a bias",
    }

    def __init__(self, features: Features = "encoder", weights: bool = True, **options: Any):
        super().__init__(**options)
        if features not in ("encoder", "embeddings"):
            raise CovistError(f"features={features!r}: choose 'encoder' or 'embeddings'")
        if not isinstance(weights, bool):
            raise CovistError(f"weights={weights!r}: choose on or off")
        self.features, self.weights = features, weights
        self._coverages: PerImage[ContentCoverage] = PerImage()
        self._orders: PerImage[list[int]] = PerImage()  # the first tokens of greedy coverage, as far as it was followed

    @property
    def needs(self) -> tuple[str, ...]:
        return ("embeddings",) if self.features == "embeddings" else super().needs

    def count_for(self, image: ImageContext, level: float, least: int, most: int) -> int:
        coverage = self._coverage(image)
        self._orders[image] = smallest_prefix(greedy_order(coverage.affinity, coverage.omega), level, least, most)
        return len(self._orders[image])

    def coverage_gains(self, image: ImageContext) -> Iterator[float]:
        order = self._orders[image] = []
        for token, gain in self._coverage(image).growth():
            order.append(token)
            yield gain

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        coverage, order = self._coverage(image), self._orders.get(image, [])
        if len(order) >= count:
            kept = torch.tensor(sorted(order[:count]), device=coverage.omega.device)
        else:
            nothing = torch.empty(0, dtype=torch.long, device=coverage.omega.device)
            _, kept = partition(greedy_coverage(coverage.affinity, coverage.omega, nothing, count), count)
        composed, assignment = represent(state, kept, coverage.affinity.index_select(1, kept))
        return Reduction(
            composed,
            coverage=float(coverage_share(coverage.affinity, coverage.omega, kept)),
            assignment=assignment,
            maps={"distinctiveness": coverage.omega},
            captions={"distinctiveness": "bright: unlike\nthe rest of the image"},
        )

    def _coverage(self, image: ImageContext) -> ContentCoverage:
        if image not in self._coverages:
            signals = image.signals
            features = signals.embeddings if self.features == "embeddings" else signals.hidden
            self._coverages[image] = ContentCoverage.of(features, image.grid.matching_frames)
        return self._coverages[image]

    def attention_rule(self, decoder: Decoder) -> AttentionRule | None:
        return plain_rule(decoder.layers, decoder.heads) if self.weights else None


def represent(state: VisualState, kept: Tensor, affinity: Tensor) -> tuple[VisualState, Tensor]:
    """Represent all tokens by those `kept` [K], given the affinity of all to them [N, K] -> (state, assignment [N])."""
    assignment, _ = correspondence(affinity)
    assignment.index_copy_(0, kept, torch.arange(kept.shape[0], device=kept.device))  # itself, even if it has a copy
    means, sizes = cluster_means(state.features, assignment, kept.shape[0])
    companions = {
        layer: cluster_means(features, assignment, kept.shape[0])[0].to(features.dtype)
        for layer, features in state.companions.items()
    }
    reduced = state.restrict(kept)
    return reduced.replace(features=means.to(state.features.dtype), weights=sizes, companions=companions), assignment
