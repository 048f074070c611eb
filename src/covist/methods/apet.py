"""ApET: tokens that a small basis cannot approximate stay, before the decoder and in its middle."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from covist.contract.method import MethodInfo, Outcome
from covist.contract.views import DecoderView, ImageContext
from covist.methods._inside import Stepped
from covist.methods._shared import cosine, farthest_points, largest, without
from covist.methods.random import Seeded
from covist.methods.registry import register_method
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
        goes_by="diversity",
        needs=("encoder-features", "decoder-states"),
        licence="MIT",
        published=(
            "A basis of 10 tokens by farthest point sampling (squared Euclid) on the encoder features; every token is "
            "approximated by ridge regression on it (1e-5), and those with the largest errors stay. The 10 of these "
            "with the smallest errors are overwritten by the basis, in ascending order; every dropped token joins the "
            "most similar (cosine) of the others, whose content becomes the mean; then the projector. The same again "
            "on the hidden states before layer 16 of 32: 288 then 96, 192 then 64, 96 then 32. Positions are "
            "renumbered."
        ),
        ours=(
            "The first point of the sampling is random in the original: here the seed alone draws it. The basis takes "
            "at most half of the places, so that fewer than 20 kept tokens have a smaller basis, and a single one is "
            "the longest token with all others merged into it. Basis tokens that are not kept themselves are dropped "
            "tokens too and join another one. Errors are computed in float64, where copies in the basis leave the "
            "system solvable, and ranked in float32, where copies have equal errors and the first of them goes first. "
            "Other depths scale the layer, and the counts are solved for the layer-mean budget."
        ),
        checked="reference: ApET (basis, errors, kept tokens and content of both stages)",
    )

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Outcome:
        signals = image.signals
        approximated = approximate(signals.hidden, count, self.seed)
        features = signals.project(approximated.features.to(signals.hidden.dtype))
        return Outcome(approximated.applied_to(state, features))

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Outcome:
        started = perf_counter()
        approximated = approximate(view.observed[view.visual], count, self.seed)
        reduced = approximated.applied_to(state, approximated.features)
        return Outcome(reduced, seconds={"selection": perf_counter() - started})


@dataclass(frozen=True)
class Approximated:
    """What is left of N tokens."""

    kept: Tensor  # [M] places of the tokens that stay, increasing
    features: Tensor  # [M, d] what they are now
    joined: Tensor  # [N - M] place, among those that stay, that each of the others has joined

    def applied_to(self, state: VisualState, features: Tensor) -> VisualState:
        """The state with these features [M, d] on its kept tokens; weights go where dropped tokens went."""
        dropped = without(self.kept, state.count)
        reduced = state.restrict(self.kept)
        weights = reduced.weights.index_add(0, self.joined, state.weights[dropped])
        return reduced.replace(features=features.to(state.features.dtype), weights=weights)


def approximate(features: Tensor, count: int, seed: int) -> Approximated:
    """Keep `count` of the tokens [N, d]."""
    features = features.float()
    basis = sampled_basis(features, min(BASIS, count // 2), seed)
    order = largest(approximation_errors(features, basis), count)
    kept = order.sort().values
    dropped = without(kept, len(features))
    targets, overwritten = (part.sort().values for part in order.split([count - len(basis), len(basis)]))
    nearest = targets[cosine(features[dropped], features[targets]).argmax(-1)]

    sizes = torch.ones_like(features[:, :1]).index_add_(0, nearest, torch.ones_like(features[dropped, :1]))
    means = features.index_add(0, nearest, features[dropped]) / sizes
    means[overwritten] = features[basis]
    return Approximated(kept, means[kept], torch.searchsorted(kept, nearest))


def sampled_basis(features: Tensor, size: int, seed: int) -> Tensor:
    """Tokens [size] that are far apart among [N, d], increasing."""
    start = torch.randint(len(features), (1,), generator=torch.Generator().manual_seed(seed)).to(features.device)
    return farthest_points(features, start, size)[:size].sort().values


def approximation_errors(features: Tensor, basis: Tensor) -> Tensor:
    """Norms [N] of what a ridge regression on the basis leaves of tokens [N, d], in float32, where copies are equal."""
    features = features.double()
    directions = features[basis]  # [b, d]
    ridge = RIDGE * torch.eye(len(basis), dtype=features.dtype, device=features.device)
    coefficients = torch.linalg.solve(directions @ directions.T + ridge, directions @ features.T)  # [b, N]
    return (features - coefficients.T @ directions).norm(dim=-1).float()
