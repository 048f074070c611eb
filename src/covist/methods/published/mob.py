"""MoB: half of the tokens cover what the prompt points to, the other half the rest of the image."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.methods.inside import DropInside, NominalCounts, key_norms, last_prompt_row
from covist.methods.registry import register_method
from covist.methods.shared import cosine, distances, expand, largest
from covist.state import VisualState

ANCHORS = 8


@register_method
class MoB(NominalCounts, DropInside):
    name = "mob"
    cuts = (2,)
    info = MethodInfo(
        paper=(
            "Why 1 + 1 < 1 in Visual Token Pruning: Beyond Naive Integration via Multi-Objective Balanced Covering "
            "(NeurIPS 2025)"
        ),
        acts="before layer 2/32",
        signals="keys of the preceding layer, decoder states after the final norm",
        budget="layer average K: all tokens, then a solved count; counts=nominal keeps K after the cut",
        criterion="instruction",
        needs=("decoder-keys", "decoder-states"),
        licence="MIT",
        published=(
            "Tokens are dropped before layer 2 of 32. Anchors are the 8 text tokens after the image with the largest "
            "L1 norm of their rotated key in layer 1. Half of the places, K_p, belong to the prompt, with k = K_p / 8 "
            "(both rounded down): every anchor names its max(k, 8 k times its share of the anchors' norms, rounded up) "
            "most similar image tokens (cosine of states after the final norm). A named token scores cosine plus the "
            "raw key norm, the best over anchors. The other half are the farthest points (1 - cosine) from these. "
            "Original positions. K tokens after the cut are a layer mean of 216, 156 and 96 for 192, 128 and 64."
        ),
        ours=(
            "The count after the cut is solved for the layer-mean budget unless counts=nominal, and it is reached "
            "exactly: at most K_p of the named tokens stay, by their score, and farthest points fill all remaining "
            "places. The original keeps every named token (its cap is never below their number) and adds K - K_p "
            "points, however much the anchors overlap. The key norm in the score is taken to be the anchor's, since "
            "the score is the best over anchors. K_p and k are at least 1. Shorter texts have fewer anchors; without "
            "text after the image, the last prompt token is the anchor. For other depths the layer is scaled. The "
            "paper's eta per benchmark is in no released code and is not included."
        ),
        checked="reference: MoB (named and kept tokens; published layer means)",
    )

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        norms = key_norms(view)
        text = view.text if len(view.text) else last_prompt_row(view)
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
