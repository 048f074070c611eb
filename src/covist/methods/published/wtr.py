"""WTR: DivPrune or DART, then a random choice, because deep in the decoder no token is better than another."""

from __future__ import annotations

from torch import Tensor

from covist.contract.views import DecoderView, ImageContext
from covist.methods.inside import ChooseInside, Stepped, at_first_cut
from covist.methods.published import register_published
from covist.methods.published.dart import Dart
from covist.methods.published.divprune import DivPrune
from covist.methods.random import Seeded, drawn
from covist.state import VisualState


class RandomAtLast(Seeded, ChooseInside):
    """Drops tokens at random at its last cut."""

    default_positions = "reindex"

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        return drawn(view.signals, state.count, count, self.seed)


@register_published
class WtrDivPrune(RandomAtLast, Stepped):
    name = "wtr-divprune"
    cuts = (0, 20)
    presets = {192: (284, 38), 64: (96, 10)}

    def select(self, image: ImageContext, count: int) -> Tensor:
        return DivPrune().select(image, count)


@register_published
class WtrDart(RandomAtLast, Dart):
    name = "wtr-dart"
    cuts = (2, 20)
    untouched_share = 0.5  # so that a budget of a ninth of the tokens leaves one layer whole, as published
    presets = {192: (252, 38), 64: (60, 27)}

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        if at_first_cut(self, view):
            return Dart.choose(self, state, view, count)
        return super().choose(state, view, count)
