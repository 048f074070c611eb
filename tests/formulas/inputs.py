"""Inputs that the method tests share: random ones and the structured ones that break careless code."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covist.formulas.coverage import affinity
from covist.grid import Grid
from covist.state import VisualState


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def close(actual: Tensor, expected, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(array(actual), np.asarray(expected, dtype=np.float64), rtol=tolerance, atol=tolerance)


@dataclass
class Image:
    """Encoder signals of one made-up image."""

    grid: Grid
    attention: Tensor
    keys: Tensor
    embeddings: Tensor

    @property
    def size(self) -> int:
        return self.grid.size


def image(views=((5, 7),), seed: int = 0, keys: int = 12, width: int = 20) -> Image:
    grid, g = Grid(views), generator(seed)
    return Image(
        grid=grid,
        attention=torch.rand(grid.size, generator=g) ** 4,
        keys=torch.randn(grid.size, keys, generator=g) + 0.7,
        embeddings=torch.randn(grid.size, width, generator=g) + 0.5,
    )


def constant_features(views=((4, 6),)) -> Image:
    """All tokens alike; sixteen equal components make every cosine the same number in any arithmetic."""
    made = image(views)
    made.keys, made.embeddings = torch.ones(made.size, 16), torch.ones(made.size, 16)
    return made


def duplicates() -> Image:
    """Every feature occurs twice."""
    made = image(((4, 6),))
    half = made.size // 2
    made.keys[half:], made.embeddings[half:] = made.keys[:half], made.embeddings[:half]
    return made


def dominant_cluster() -> Image:
    """One large homogeneous region and a few tokens unlike it."""
    made = image(((6, 6),), seed=2)
    made.keys[:30] = made.keys[0] + 0.1 * made.keys[:30]
    made.embeddings[:30] = made.embeddings[0] + 0.1 * made.embeddings[:30]
    return made


def zero_attention() -> Image:
    made = image(((3, 8),))
    made.attention = torch.zeros(made.size)
    return made


STRUCTURED = {
    "random": image,
    "constant features": constant_features,
    "duplicates": duplicates,
    "dominant cluster": dominant_cluster,
    "zero attention": zero_attention,
    "one token": lambda: image(((1, 1),)),
    "one row": lambda: image(((1, 9),)),
    "two views": lambda: image(((3, 4), (6, 5))),
}


def random_state(count: int = 24, seed: int = 0, width: int = 16, weights: Tensor | None = None, axes: int = 0):
    """A state somewhere in the middle of its life: gaps in the indices, inherited weights, two anchors."""
    g = generator(seed)
    grid = Grid(((7, 9),))
    indices = torch.randperm(grid.size, generator=g)[:count].sort().values
    features = torch.randn(count, width, generator=g)
    positions = (
        indices + 5 if not axes else torch.stack([torch.full_like(indices, 5), indices // 9 + 5, indices % 9 + 5], 1)
    )
    anchors = torch.zeros(count, dtype=torch.bool)
    anchors[torch.randperm(count, generator=g)[:2]] = True
    return VisualState(
        features=features,
        indices=indices,
        positions=positions,
        weights=1 + 4 * torch.rand(count, generator=g) if weights is None else weights,
        affinity=affinity(torch.randn(count, 8, generator=g) + 0.6, features + 0.4),
        anchors=anchors,
        grid=grid,
    )
