"""DART: drops tokens that duplicate a few pivots."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from covist.contract.views import DecoderView
from covist.methods.inside import DropInside, key_norms
from covist.methods.layout import allot
from covist.methods.published import register_published
from covist.methods.shared import cosine, largest
from covist.state import VisualState

PIVOTS = 4


@register_published
class Dart(DropInside):
    name = "dart"
    cuts: ClassVar[tuple[int, ...]] = (2,)
    reads_preceding_layer = True

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        image_pivots, text_pivots = pivots(view, min(PIVOTS, count))
        rows = torch.cat([view.visual[image_pivots], text_pivots])
        return spread_from(image_pivots, similarity_to(view, rows), count)


def pivots(view: DecoderView, count: int) -> tuple[Tensor, Tensor]:
    """The tokens with the longest keys: representatives [count], and rows of text tokens [up to 4]."""
    norms = key_norms(view)
    return largest(norms[view.visual], count), view.text[largest(norms[view.text], PIVOTS)]


def similarity_to(view: DecoderView, rows: Tensor) -> Tensor:
    """Cosines of some rows to the representatives, after the final norm [rows, K]."""
    normed = view.decoder.final_norm(view.hidden)
    return cosine(normed[rows], normed[view.visual])


def spread_from(image_pivots: Tensor, similarity: Tensor, count: int) -> Tensor:
    """Image pivots [p] and, for each pivot in turn, the free tokens with the lowest similarity [pivots, K]."""
    kept = [image_pivots]
    free = torch.ones_like(similarity[0], dtype=torch.bool)
    free[image_pivots] = False
    for to_pivot, quota in zip(similarity, allot(count - len(image_pivots), [1] * len(similarity)), strict=True):
        taken = to_pivot.masked_fill(~free, torch.inf).argsort(stable=True)[:quota]
        free[taken] = False
        kept.append(taken)
    return torch.cat(kept)
