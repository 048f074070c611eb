"""WTR: DivPrune or DART, then a random choice, because deep in the decoder no token is better than another."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView, ImageContext
from covist.methods.inside import ChooseInside, Stepped, at_first_cut
from covist.methods.published.dart import Dart
from covist.methods.published.divprune import DivPrune
from covist.methods.random import Seeded, drawn
from covist.methods.registry import register_method
from covist.state import VisualState

OURS = (
    "Counts keep the proportions of the published pair for the nearest budget and are solved for the layer mean, which "
    "gives the published counts at 192 and 64; 128, for which none are published, has the proportions of 192. For "
    "other depths the layers are scaled. The original draws without a seed and averages three runs; here the draw "
    "depends on the seed and the image's content."
)


class RandomAtLast(Seeded, ChooseInside):
    """Drops tokens at random at its last cut."""

    default_positions = "reindex"

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        return drawn(view.signals, state.count, count, self.seed)


@register_method
class WtrDivPrune(RandomAtLast, Stepped):
    name = "wtr-divprune"
    cuts = (0, 20)
    presets = {192: (284, 38), 64: (96, 10)}
    info = MethodInfo(
        paper=("When Token Pruning is Worse than Random: Understanding Visual Token Information in VLLMs (CVPR 2026)"),
        acts="before the decoder and before layer 20/32",
        signals="projected embeddings",
        budget="layer average K: about 1.5 K, then K / 5 or less",
        criterion="diversity",
        needs=("embeddings",),
        licence="Apache-2.0",
        published=(
            "DivPrune keeps 284 (96) tokens before the decoder; before layer 20 of 32, 38 (10) of them are kept "
            "uniformly at random: layer means of 191.75 and 63.75. Positions are renumbered at each stage."
        ),
        ours=OURS,
        checked="reference: WTR (kept tokens; published counts at 192 and 64)",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        return DivPrune().select(image, count)


@register_method
class WtrDart(RandomAtLast, Dart):
    name = "wtr-dart"
    cuts = (2, 20)
    untouched_share = 0.5  # so that a budget of a ninth of the tokens leaves one layer whole, as published
    presets = {192: (252, 38), 64: (60, 27)}
    info = replace(
        WtrDivPrune.info,
        acts="before layers 2 and 20 of 32, or 1 and 20 for small budgets",
        signals="keys of the preceding layer, decoder states after the final norm",
        budget="layer average K: all tokens, then solved counts in the published proportions",
        needs=("decoder-keys", "decoder-states"),
        published=(
            "DART keeps 252 tokens before layer 2 of 32; before layer 20, 38 of them are kept uniformly at random: a "
            "layer mean of 192. For 64, DART keeps 60 before layer 1, then 27 are kept: a layer mean of 63.75. "
            "Positions are renumbered at each stage."
        ),
        ours=(
            f"{OURS} If the layers before DART would take more than half of the budget, its cut moves forward. DART "
            "itself is as in dart, including the pivots."
        ),
    )

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        if at_first_cut(self, view):
            return Dart.choose(self, state, view, count)
        return super().choose(state, view, count)
