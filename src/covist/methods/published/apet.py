"""ApET: keeps tokens that a small basis cannot approximate, before the decoder and in its middle."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import first_largest, ranking
from covist.methods.inside import Stepped
from covist.methods.random import Seeded
from covist.methods.registry import register_method
from covist.methods.shared import TIE, cosine, farthest_points, without
from covist.reduction import Reduction
from covist.state import VisualState

BASIS, RIDGE = 10, 1e-5


@register_method
class ApET(Seeded, Stepped):
    name = "apet"
    default_positions = "reindex"
    cuts = (0, 16)
    shape = (1.5, 0.5)
    writes_content = True
    info = MethodInfo(
        paper="ApET: Approximation-Error Guided Token Compression for Efficient VLMs (CVPR 2026)",
        acts="before the decoder and before layer 16/32",
        signals="encoder features and projector, decoder states",
        budget="layer average K: 1.5 K, then K / 2",
        criterion="diversity",
        needs=("encoder-features", "decoder-states"),
        licence="MIT",
        published=(
            "A basis of 10 tokens comes from farthest point sampling (squared Euclidean distance) on the encoder "
            "features. Every token is approximated by ridge regression on it (1e-5), and those with the largest errors "
            "stay. The 10 of these with the smallest errors are overwritten by the basis, in ascending order. Every "
            "dropped token joins the most similar (cosine) of the others, whose content becomes the mean; then the "
            "projector follows. The same happens again on the hidden states before layer 16 of 32: 288 then 96, 192 "
            "then 64, 96 then 32. Positions are renumbered."
        ),
        ours=(
            "The first point of the sampling is random in the original; here it depends only on the seed. The basis "
            "takes at most half of the places, so that fewer than 20 kept tokens have a smaller basis, and a single "
            "kept token is the one with the largest norm, with all others merged into it. Basis tokens that are not "
            "kept count as dropped and join another token. Errors are computed in float64, so that copies in the basis "
            "leave the system solvable. Errors and cosines that differ only by rounding count as equal: the first of "
            "several copies comes first. For other depths the layer is scaled, and the counts are solved for the "
            "layer-mean budget."
        ),
        checked="reference: ApET (basis, errors, kept tokens and content of both stages)",
    )

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        approximated = approximate(signals.hidden, count, self.seed)
        features = signals.project(approximated.features.to(signals.hidden.dtype))
        return Reduction(approximated.applied_to(state, features))

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        started = perf_counter()
        approximated = approximate(view.observed[view.visual], count, self.seed)
        reduced = approximated.applied_to(state, approximated.features)
        return Reduction(reduced, seconds={"selection": perf_counter() - started})


@dataclass(frozen=True)
class Approximated:
    """The M tokens that stay out of N."""

    kept: Tensor  # [M] indices of the tokens that stay, increasing
    features: Tensor  # [M, d] their new content
    joined: Tensor  # [N - M] for each other token, the place among the kept ones that it has joined

    def applied_to(self, state: VisualState, features: Tensor) -> VisualState:
        """The state with these features [M, d] on its kept tokens; dropped tokens pass on their weights, too."""
        dropped = without(self.kept, state.count)
        reduced = state.restrict(self.kept)
        weights = reduced.weights.index_add(0, self.joined, state.weights[dropped])
        return reduced.replace(features=features.to(state.features.dtype), weights=weights)


def approximate(features: Tensor, count: int, seed: int) -> Approximated:
    """Keep `count` of the tokens [N, d]."""
    features = features.float()
    basis = sampled_basis(features, min(BASIS, count // 2), seed)
    order = ranking(approximation_errors(features, basis))[:count]
    kept = order.sort().values
    dropped = without(kept, len(features))
    targets, overwritten = (part.sort().values for part in order.split([count - len(basis), len(basis)]))
    nearest = targets[first_largest(cosine(features[dropped], features[targets]), TIE, dim=-1)]

    sizes = torch.ones_like(features[:, :1]).index_add_(0, nearest, torch.ones_like(features[dropped, :1]))
    means = features.index_add(0, nearest, features[dropped]) / sizes
    means[overwritten] = features[basis]
    return Approximated(kept, means[kept], torch.searchsorted(kept, nearest))


def sampled_basis(features: Tensor, size: int, seed: int) -> Tensor:
    """Tokens [size] that are far apart among [N, d], increasing."""
    start = torch.randint(len(features), (1,), generator=torch.Generator().manual_seed(seed)).to(features.device)
    return farthest_points(features, start, size)[:size].sort().values


def approximation_errors(features: Tensor, basis: Tensor) -> Tensor:
    """Norms [N] of the residuals of tokens [N, d] after ridge regression on the basis."""
    features = features.double()
    directions = features[basis]  # [b, d]
    ridge = RIDGE * torch.eye(len(basis), dtype=features.dtype, device=features.device)
    coefficients = torch.linalg.solve(directions @ directions.T + ridge, directions @ features.T)  # [b, N]
    return (features - coefficients.T @ directions).norm(dim=-1)
