"""ZOO-Prune: tokens far apart from each other whose embeddings react most to small changes of their features."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.formulas.ops import unit_rows
from covist.methods.published import register_published
from covist.methods.random import Seeded
from covist.methods.shared import distances, expand, first_best, stretched

STEP = 0.01  # in float16
SAME = 1e-3  # sensitivities that differ by less, relative to the largest, are those of a linear projector


@register_published
class ZooPrune(Seeded):
    name = "zoo-prune"
    default_positions = "reindex"
    options: ClassVar = {
        "seed": "an integer; another seed draws other directions",
        "directions": "number of directions in which the features are moved, at least 1; the cost grows with it",
    }

    def __init__(self, seed: int = 0, directions: int = 64, **options: Any):
        super().__init__(seed, **options)
        if not (isinstance(directions, int) and directions >= 1):
            raise CovistError(f"directions={directions!r}: choose an integer of at least 1")
        self.directions = directions

    def select(self, image: ImageContext, count: int) -> Tensor:
        sensitivity = self.sensitivity(image.signals)
        return expand(first_best(sensitivity)[None], distances(image.signals.embeddings), count, sensitivity)

    def sensitivity(self, signals: ImageSignals) -> Tensor:
        """Sensitivity between 0 and 1, [N]; ones if all tokens are equally sensitive."""
        generator = torch.Generator().manual_seed(self.seed)
        width = signals.hidden.shape[-1]
        bank = unit_rows(torch.randn(self.directions, width, generator=generator, dtype=torch.float32))
        return stretched(responses(signals, bank).mean(0), SAME)


@torch.no_grad()
def responses(signals: ImageSignals, bank: Tensor) -> Tensor:
    """How far each embedding moves per unit of movement of its features, for directions [m, v] -> [m, N].

    Directions are handled one at a time, so that no more than two images are projected at once.
    """
    hidden = signals.hidden
    step = step_in(hidden.dtype)
    moved = []
    for move in (step * bank).to(hidden):
        ahead, back = signals.project(torch.cat([hidden + move, hidden - move])).float().chunk(2)
        moved.append((ahead - back).norm(dim=-1) / (2 * step))
    return torch.stack(moved)


def step_in(dtype: torch.dtype) -> float:
    """The step that `dtype` resolves as well as float16 resolves the published step."""
    return STEP * max(1.0, torch.finfo(dtype).eps / torch.finfo(torch.float16).eps)
