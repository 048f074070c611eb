"""DART: drops tokens that duplicate a few pivots."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.methods.inside import DropInside, key_norms
from covist.methods.layout import allot
from covist.methods.registry import register_method
from covist.methods.shared import cosine, largest
from covist.state import VisualState

PIVOTS = 4


@register_method
class Dart(DropInside):
    name = "dart"
    cuts: ClassVar[tuple[int, ...]] = (2,)
    info = MethodInfo(
        paper="Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More (EMNLP 2025)",
        acts="before layer 2/32",
        signals="keys of the preceding layer, decoder states after the final norm",
        budget="layer average K: all tokens, then a solved count, including the pivots",
        criterion="diversity",
        needs=("decoder-keys", "decoder-states"),
        licence="Apache-2.0",
        published=(
            "Tokens are dropped before layer 2 of 32. Pivots are the 4 image and the 4 text tokens with the largest L1 "
            "norm of their rotated key in layer 1; each pivot in turn takes the tokens with the lowest cosine to it "
            "(states after the final norm). 8 pivots with a quota of 16 plus 4 image pivots make 132 tokens, where the "
            "authors say 128. Original positions."
        ),
        ours=(
            "The true count is solved for the layer-mean budget, and the pivots share what the image pivots leave (132 "
            "tokens give the published quotas of 16). Pivots are ordered by norm, image first (the original follows "
            "hash order)."
        ),
        checked="golden: dart (pivots, and kept tokens at 192, 128 and 64 given the pivots' order)",
    )

    def observed_layer(self, depth: int) -> int:
        return depth - 1

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
