"""A short cosine series that replaces the distance factor log(2 - D) of Eq. 9, for kernels without a bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.checks import require
from covist.formulas.attention import DistanceTable

REACH = 4096  # largest distance that the series is fitted to
NEAR = 64  # a distance d has weight 1 / (NEAR + d) in the fit, so that near and far keys share the error
GRID_SIDE = 48  # rows and columns of an image, if positions have several axes
INSIDE_SHARE = 0.1  # with several axes, the weight of distances between the tokens of an image; text has the rest
CANDIDATES = 256  # log-spaced frequencies to choose from, per axis
SLOWEST = 0.3  # radians by which the slowest candidate turns within the reach
RIDGE = 1e-6  # keeps amplitudes small, so that half precision can carry them


@dataclass(frozen=True)
class CosineSeries:
    """constant + sum_j amplitude_j cos(frequency_j distance), each term along one axis of the positions."""

    constant: float
    amplitudes: Tensor  # [terms] float64
    frequencies: Tensor  # [terms] float64, radians per position
    axes: Tensor  # [terms] long

    @classmethod
    def zero(cls) -> CosineSeries:
        """The series of a rule without a distance factor."""
        nothing = torch.zeros(0, dtype=torch.float64)
        return cls(0.0, nothing, nothing, nothing.long())

    @property
    def terms(self) -> int:
        return len(self.amplitudes)

    def __call__(self, distances: Tensor) -> Tensor:
        """Distances [..., axes] -> [...] in float64."""
        along = distances[..., self.axes].double()  # [..., terms]
        return self.constant + torch.cos(along * self.frequencies) @ self.amplitudes


def fit_series(table: DistanceTable, terms: int, reach: int = REACH) -> CosineSeries:
    """The series closest to log(2 - D) in weighted least squares over distances up to `reach`.

    Terms are found one after another among candidate frequencies and then exchanged one at a time until nothing
    improves. The result depends only on the arguments.
    """
    require(terms >= 0, "fit_series", f"terms must not be negative, got {terms}")
    require(reach >= 1, "fit_series", f"reach must be at least 1, got {reach}")
    distances, importance = _sample(table, reach)  # [n, axes], [n]
    frequencies = _candidates(table, reach)
    waves = torch.cos(distances[:, :, None].double() * frequencies).flatten(1)  # [n, axes * candidates]
    basis = torch.cat([torch.ones_like(waves[:, :1]), waves], 1)
    weighted = importance[:, None] * basis
    search = _LeastSquares(basis.T @ weighted, _log_factor(table, distances) @ weighted)
    chosen = search.choose(terms)
    solution = search.solve(torch.tensor([[0, *chosen]]))[0]
    picked = torch.tensor(chosen, dtype=torch.long) - 1
    count = len(frequencies)
    return CosineSeries(float(solution[0]), solution[1:], frequencies[picked % count], picked // count)


def error_bound(series: CosineSeries, table: DistanceTable, reach: int = REACH) -> float:
    """The largest |series - log(2 - D)| over all distances up to `reach`, in nats, before the gain of a head.

    Positions are integers, so this is every distance that can occur, not a sample. With several axes it covers an image
    of GRID_SIDE x GRID_SIDE tokens: its tokens among themselves, and text that follows it by up to `reach`.
    """
    return max(float((series(part) - _log_factor(table, part)).abs().max()) for part in _distances(table, reach))


def _log_factor(table: DistanceTable, distances: Tensor) -> Tensor:
    """log(2 - D) in float64 for distances [n, axes]."""
    shares = torch.cos(torch.arange(int(distances.max()) + 1)[:, None] * table.inverse_frequencies)
    factor = torch.zeros(len(distances), dtype=torch.float64)
    for axis in range(distances.shape[1]):
        factor += shares[:, table.axes == axis].sum(1)[distances[:, axis]]
    return torch.log(2 - factor / len(table.axes))


def _candidates(table: DistanceTable, reach: int) -> Tensor:
    """Frequencies that a term may have: log-spaced ones, and those of the host model, of which D consists."""
    slowest = torch.tensor(SLOWEST / reach, dtype=torch.float64)
    spaced = slowest * (torch.pi / slowest) ** torch.linspace(0, 1, CANDIDATES, dtype=torch.float64)
    return torch.cat([spaced, table.inverse_frequencies[table.inverse_frequencies > slowest]])


def _sample(table: DistanceTable, reach: int) -> tuple[Tensor, Tensor]:
    """Distances [n, axes] between queries and visual keys, and the weight of each in the fit, [n]."""
    if not table.multidimensional:
        distances = torch.arange(reach + 1)[:, None]
        return distances, _importance(distances)
    inside = _image_distances(table, step=6)
    after = 1 + torch.randperm(reach, generator=torch.Generator().manual_seed(0))[:256]  # regular steps would alias
    text = _text_distances(after, inside)
    importance = [INSIDE_SHARE * _importance(inside), (1 - INSIDE_SHARE) * _importance(text)]
    return torch.cat([inside, text]), torch.cat(importance)


def _importance(distances: Tensor) -> Tensor:
    importance = 1 / (NEAR + distances.amax(1).double())
    return importance / importance.sum()


def _distances(table: DistanceTable, reach: int) -> Iterator[Tensor]:
    """Every distance, in blocks [n, axes]."""
    if not table.multidimensional:
        yield torch.arange(reach + 1)[:, None]
        return
    inside = _image_distances(table)
    yield inside
    for after in torch.arange(1, reach + 1).split(64):
        yield _text_distances(after, inside)


def _image_distances(table: DistanceTable, step: int = 1) -> Tensor:
    """[tokens, axes]: from the first token of an image to the others, which differ along the last two axes."""
    side = torch.arange(0, GRID_SIDE, step)
    places = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).flatten(0, 1)
    return F.pad(places, (int(table.axes.max()) - 1, 0))


def _text_distances(after: Tensor, inside: Tensor) -> Tensor:
    """[n, axes]: from text, whose position is the same on all axes, back to the tokens of an image before it."""
    distances = (after[:, None, None] - inside).flatten(0, 1)
    return distances[distances.amin(1) > 0]


class _LeastSquares:
    """Weighted least squares on subsets of a basis, from its Gram matrix; element 0 is the constant."""

    def __init__(self, gram: Tensor, moments: Tensor):
        self._gram, self._moments = gram, moments

    def solve(self, subsets: Tensor) -> Tensor:
        """Coefficients [n, size] of each subset [n, size]."""
        gram = self._gram[subsets[:, :, None], subsets[:, None, :]]
        ridge = RIDGE * torch.eye(subsets.shape[1], dtype=gram.dtype)
        return torch.linalg.solve(gram + ridge, self._moments[subsets])

    def choose(self, terms: int) -> list[int]:
        """A subset of `terms` elements besides the constant that no exchange of one element improves."""
        chosen: list[int] = []
        for _ in range(terms):
            chosen.append(self._best_addition(chosen)[0])
        explained, before = 0.0, -1.0
        while terms and explained > before + 1e-12:
            before = explained
            for _ in range(terms):
                addition, explained = self._best_addition(chosen[1:])
                chosen = [*chosen[1:], addition]
        return chosen

    def _best_addition(self, chosen: list[int]) -> tuple[int, float]:
        """The element that explains most together with the constant and `chosen`, and how much they all explain."""
        additions = torch.arange(1, len(self._moments))
        fixed = torch.tensor([0, *chosen]).expand(len(additions), -1)
        subsets = torch.cat([fixed, additions[:, None]], 1)
        explained = (self.solve(subsets) * self._moments[subsets]).sum(1)
        best = int(explained.argmax())
        return int(additions[best]), float(explained[best])
