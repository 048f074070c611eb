"""FitPrune: every layer drops as many tokens as its attention can spare."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import DecoderView
from covist.errors import CovistError
from covist.formulas.ops import round_half_up
from covist.methods.inside import ScoreInside, last_prompt_row, solved
from covist.methods.published._fitting import Attended
from covist.methods.registry import register_method
from covist.reduction import Reduction
from covist.schedule import Calibration, Schedule, fixed_schedule
from covist.state import VisualState

ROWS_AT_ONCE = 256  # image tokens that serve as queries at a time, which bounds the memory for their attention
EMBEDDED = Calibration(
    (
        (1.0, 0.59, 0.478, 0.42, 0.397, 0.391, 0.376, 0.348),
        (1.0, 0.354, 0.278, 0.229, 0.214, 0.208, 0.202, 0.183),
        (1.0, 0.156, 0.129, 0.108, 0.101, 0.099, 0.097, 0.088),
        (1.0, 0.062, 0.054, 0.047, 0.044, 0.044, 0.043, 0.04),
    )
)
"""The embedded model's: `covist calibrate --suite scenes --limit 24 --budgets 50%,33.3%,22.2%,16.7%`."""


@register_method
class FitPrune(ScoreInside):
    name = "fitprune"
    options: ClassVar = {
        "calibration": "how many tokens each layer sees, as `covist calibrate` measured it; pass its file as config="
    }
    info = MethodInfo(
        paper=(
            "Fit and Prune: Fast and Training-free Visual Token Pruning for Multi-modal Large Language Models "
            "(AAAI 2025)"
        ),
        acts="after every layer that can spare tokens",
        signals="attention of the text and of the image to the image in the preceding layer, calibrated counts",
        budget="layer average K: all tokens in the first layer, then calibrated counts",
        criterion="attention",
        needs=("decoder-attention",),
        licence="no licence file",
        published=(
            "Every layer has its own number of tokens to drop. Those with the lowest score are dropped: the sum of the "
            "text's rows times the mean of the image's rows of the layer's attention, maximum over heads. The numbers "
            "come from a calibration, a binary search on alpha: the tokens that receive least may be dropped as long "
            "as the rest receive at least 1 - alpha of what all receive in that layer, from the text and from the "
            "image; tokens that may be dropped by both criteria are dropped."
        ),
        ours=(
            "The published numbers are only for LLaVA-1.5-7B and are not used. `covist calibrate` measures them on any "
            "model and data. By default, the numbers of the embedded model are stretched over the decoder's depth; "
            "they only stand in for a calibration of your model. Images are fitted one by one and their shares "
            "averaged, so they may differ in size; the target is the layer mean of tokens, which determines the FLOPs. "
            "Budgets between two fitted ones interpolate, and the counts are solved for the layer mean. The original "
            "removes tokens between a layer's attention and its feed-forward block; here they are removed after the "
            "layer, which leaves the same tokens and makes the feed-forward block a little more expensive. The "
            "selection reads all attention of the image in every layer that drops tokens, which costs about 25 times "
            "the selection of CoViST-Pro. Positions are kept; the description leaves this open."
        ),
        checked="reference: FitPrune (score and kept tokens; shares of every layer at an alpha, and the search)",
    )

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

    def observed_layer(self, depth: int) -> int:
        return depth - 1

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
    text = view.text if len(view.text) else last_prompt_row(view)
    internal = [_received(view, rows) for rows in view.visual.split(ROWS_AT_ONCE)]
    return _received(view, text), torch.stack(internal).sum(0) / len(view.visual)


def _received(view: DecoderView, rows: Tensor) -> Tensor:
    return view.attention(rows).amax(0)[:, view.visual].sum(0)
