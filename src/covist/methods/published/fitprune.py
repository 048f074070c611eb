"""FitPrune: every layer drops as many tokens as its attention can spare."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import DecoderView
from covist.errors import CovistError
from covist.formulas.ops import round_half_up
from covist.methods.inside import ROWS_AT_ONCE, ScoreInside, solved, text_rows
from covist.methods.published import register_published
from covist.methods.published._fitting import Attended
from covist.reduction import Reduction
from covist.schedule import Calibration, Schedule, fixed_schedule
from covist.state import VisualState

EMBEDDED = Calibration(
    (
        (1.0, 0.59, 0.478, 0.42, 0.397, 0.391, 0.376, 0.348),
        (1.0, 0.354, 0.278, 0.229, 0.214, 0.208, 0.202, 0.183),
        (1.0, 0.156, 0.129, 0.108, 0.101, 0.099, 0.097, 0.088),
        (1.0, 0.062, 0.054, 0.047, 0.044, 0.044, 0.043, 0.04),
    )
)
"""The embedded model's: `covist calibrate --suite scenes --limit 24 --budgets 50%,33.3%,22.2%,16.7%`."""


@register_published
class FitPrune(ScoreInside):
    name = "fitprune"
    reads_preceding_layer = True
    options: ClassVar = {
        "calibration": "how many tokens each layer sees, as `covist calibrate` measured it; pass its file as config="
    }

    def __init__(self, calibration: Calibration | None = None, **options: Any):
        super().__init__(**options)
        if not isinstance(calibration, Calibration | None):
            raise CovistError(
                "calibration is measured by `covist calibrate --method fitprune`; pass the file that it writes as "
                "config= or --config"
            )
        self.calibration = calibration or EMBEDDED

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        if budget >= tokens:
            return fixed_schedule(layers, tokens, tokens)

        def schedule(level: float) -> Schedule:
            counts = [max(1, round_half_up(share * tokens)) for share in self.calibration.shares(layers, level)]
            falls = [layer for layer in range(1, layers) if counts[layer] < counts[layer - 1]]
            return Schedule(layers, ((0, tokens), *((layer, counts[layer]) for layer in falls)))

        return solved(schedule, 1.0, budget)

    def score(self, view: DecoderView) -> Tensor:
        cross, internal = received(view)
        return cross * internal


class AttentionProbe(Method):
    """Removes nothing, but records the attention that images receive in each layer except the last, for calibration."""

    name = "attention-probe"

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.sizes: list[tuple[int, int]] = []  # tokens and frames of each image

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        return Schedule(layers, tuple((layer, tokens) for layer in range(layers)))

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def is_due(self, count: int, current: int) -> bool:
        return True

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        cross, internal = received(view)
        self._seen.setdefault(view.depth, []).append((cross.cpu(), internal.cpu()))
        if view.depth == 1:
            self.sizes.append((state.count, view.signals.grid.frames))
        return Reduction(state)

    @property
    def attended(self) -> Attended:
        """The recorded attention, ready to be fitted."""
        return Attended.of(self.images)

    @property
    def images(self) -> list[tuple[Tensor, Tensor]]:
        """Attention received (from the text, from the image), [layers - 1, N] each, of every recorded image."""
        by_image = zip(*(self._seen[depth] for depth in sorted(self._seen)), strict=True)
        return [(torch.stack([cross for cross, _ in own]), torch.stack([o for _, o in own])) for own in by_image]


def received(view: DecoderView) -> tuple[Tensor, Tensor]:
    """Attention to the representatives in the strongest head: sum over text rows, mean over image rows, [K] each."""
    internal = [_received(view, rows) for rows in view.visual.split(ROWS_AT_ONCE)]
    return _received(view, text_rows(view)), torch.stack(internal).sum(0) / len(view.visual)


def _received(view: DecoderView, rows: Tensor) -> Tensor:
    return view.attention(rows).amax(0)[:, view.visual].sum(0)
