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

The attention adds log m in every layer and head (Eq. 9 without distance factor and head gains, which showed no gain).
Two settings exist for engines that offer less: `features=embeddings` and `weights=off`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from covist.checks import require_affordable, require_finite
from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method, MethodInfo, plain_rule
from covist.contract.views import ImageContext, PerImage
from covist.errors import CovistError
from covist.formulas.adaptive import greedy_order, smallest_prefix
from covist.formulas.composition import correspondence
from covist.formulas.coverage import coverage_share
from covist.formulas.greedy import greedy_coverage
from covist.formulas.ops import gram, mass_norm, partition, unit_rows
from covist.methods.registry import register_method
from covist.methods.shared import cluster_means
from covist.reduction import Reduction
from covist.state import VisualState

Features = Literal["encoder", "embeddings"]
ROUNDING = 1e-4
"""Added to D, so that an image whose tokens differ only by rounding counts as uniform."""


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
            "attention, no protected core and no limit on the weights."
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
        self._known: PerImage[CoverageInputs] = PerImage()

    @property
    def needs(self) -> tuple[str, ...]:
        return ("embeddings",) if self.features == "embeddings" else super().needs

    def count_for(self, image: ImageContext, level: float, least: int, most: int) -> int:
        inputs = self._inputs(image)
        inputs.order = smallest_prefix(greedy_order(inputs.affinity, inputs.omega), level, least, most)
        return len(inputs.order)

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        inputs = self._inputs(image)
        if len(inputs.order) == count:
            kept = torch.tensor(sorted(inputs.order), device=inputs.omega.device)
        else:
            nothing = torch.empty(0, dtype=torch.long, device=inputs.omega.device)
            _, kept = partition(greedy_coverage(inputs.affinity, inputs.omega, nothing, count), count)
        composed, assignment = represent(state, kept, inputs.affinity.index_select(1, kept))
        return Reduction(
            composed,
            coverage=float(coverage_share(inputs.affinity, inputs.omega, kept)),
            assignment=assignment,
            maps={"distinctiveness": inputs.omega},
            captions={"distinctiveness": "bright: unlike\nthe rest of the image"},
        )

    def _inputs(self, image: ImageContext) -> CoverageInputs:
        if image not in self._known:
            signals = image.signals
            self._known[image] = coverage_inputs(
                signals.embeddings if self.features == "embeddings" else signals.hidden
            )
        return self._known[image]

    def attention_rule(self, decoder: Decoder) -> AttentionRule | None:
        return plain_rule(decoder.layers, decoder.heads) if self.weights else None


@dataclass(eq=False)
class CoverageInputs:
    """What the coverage of an image depends on: s [N, N] and omega [N], with sum one."""

    affinity: Tensor
    omega: Tensor
    order: list[int] = field(default_factory=list)  # the tokens that a required coverage needs, best first


def coverage_inputs(hidden: Tensor) -> CoverageInputs:
    """Affinity and coverage weights from encoder features [N, v]."""
    require_affordable("covist-max", hidden.shape[0])
    require_finite("covist-max", hidden=hidden)
    distances = gram(unit_rows(hidden)).neg_().add_(1).clamp_(min=0)  # [N, N]
    farthest = distances.amax(1).mean() + ROUNDING  # D, []
    affinity = distances.mul_(-2 / farthest).exp_()
    affinity.fill_diagonal_(1)  # exact, despite rounding
    return CoverageInputs(affinity, mass_norm(1 / torch.einsum("ij,ij->i", affinity, affinity)))


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
