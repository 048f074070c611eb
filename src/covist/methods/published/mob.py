"""MoB: half of the tokens cover what the prompt points to, the other half the rest of the image."""

from __future__ import annotations

from torch import Tensor

from covist.contract.views import DecoderView
from covist.methods.inside import DropInside, NominalCounts, key_norms, text_rows
from covist.methods.published import register_published
from covist.methods.shared import cosine, distances, expand, largest
from covist.state import VisualState

ANCHORS = 8


@register_published
class MoB(NominalCounts, DropInside):
    name = "mob"
    cuts = (2,)
    reads_preceding_layer = True

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        norms = key_norms(view)
        text = text_rows(view)
        anchors = text[largest(norms[text], ANCHORS)]
        normed = view.decoder.final_norm(view.hidden)
        similarity = cosine(normed[anchors], normed[view.visual])  # [anchors, K]
        prompted = named(similarity, norms[anchors], max(1, count // 2))
        return expand(prompted, distances(normed[view.visual]), count)


def named(similarity: Tensor, norms: Tensor, places: int) -> Tensor:
    """The best tokens named by anchors with key norms [A], from similarity [A, K] -> at most `places`."""
    least = max(1, places // ANCHORS)
    quotas = (least * len(norms) * (norms / norms.sum())).ceil().clamp(min=least)
    rank = similarity.argsort(descending=True, stable=True).argsort()
    is_named = rank < quotas[:, None]
    score = (similarity + norms[:, None]).masked_fill(~is_named, -float("inf")).amax(0)
    return largest(score, min(places, int(is_named.any(0).sum())))
