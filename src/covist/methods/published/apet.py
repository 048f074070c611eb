"""ApET: keeps tokens that a small basis cannot approximate, before the decoder and in its middle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covist.contract.views import DecoderView, ImageContext
from covist.formulas.ops import first_largest, ranking
from covist.methods.inside import ReduceInside, Stepped
from covist.methods.published import register_published
from covist.methods.random import Seeded
from covist.methods.shared import TIE, cosine, farthest_points, without
from covist.reduction import Reduction
from covist.state import VisualState

BASIS, RIDGE = 10, 1e-5


@register_published
class ApET(Seeded, Stepped, ReduceInside):
    name = "apet"
    default_positions = "reindex"
    cuts = (0, 16)
    shape = (1.5, 0.5)
    writes_content = True

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        approximated = approximate(signals.hidden, count, self.seed)
        features = signals.project(approximated.features.to(signals.hidden.dtype))
        return Reduction(approximated.applied_to(state, features))

    def reduced(self, state: VisualState, view: DecoderView, count: int) -> VisualState:
        approximated = approximate(view.observed[view.visual], count, self.seed)
        return approximated.applied_to(state, approximated.features)


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
