"""AnchorPrune: anchors that are relevant to the question, then context that is salient and new."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.views import ImageContext
from covist.formulas.ops import mass_norm, round_half_up
from covist.methods.registry import register_method
from covist.methods.relevance import clip_relevance, embedding_cosines
from covist.methods.shared import cosine, distances, expand, largest, received_attention

FIRST_ANCHORS, ANCHOR_LIMIT = 5 / 32, 0.5
NOVELTY, PATIENCE = 0.2, 3


@register_method
class AnchorPrune(Method):
    name = "anchorprune"
    default_positions = "reindex"
    uses_clip_text = True
    info = MethodInfo(
        paper="AnchorPrune: Relevance-Anchored Contextual Expansion for Visual Token Pruning (ECCV 2026)",
        acts="before the decoder",
        signals="class attention, encoder features, CLIP text or the question's input embeddings",
        budget="exactly K in every layer",
        criterion="instruction",
        needs=("class-attention", "encoder-features", "clip-text", "question"),
        licence="Apache-2.0",
        published=(
            "The first 5/32 of the count in the order of relevance (the negated CLIP cosine) are anchors. More follow "
            "in that order until three of them were novel (1 - cosine to the first anchors above 0.2 in CLIP's text "
            "space), up to half of the count. The rest maximises class attention times the distance in encoder "
            "features to all chosen tokens."
        ),
        ours=(
            "5/32 generalises the published 5, 10 and 20 of 32, 64 and 128 to any count. Without CLIP's text space, "
            "relevance is the largest cosine to a question token's input embedding and novelty is measured on "
            "projected embeddings (the published rule for Qwen2.5-VL). Without a question, class attention is the "
            "relevance."
        ),
        checked="golden: anchorprune (relevance, anchors and kept tokens at 192, 128 and 64)",
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        saliency = mass_norm(received_attention(image.signals))
        relevance, features = clip_relevance(image), image.patch_text_features
        if relevance is None or features is None:
            cosines = embedding_cosines(image)
            relevance = saliency if cosines is None else cosines.amax(-1)
            features = image.signals.embeddings
        return expand(anchors(relevance, features, count), distances(image.signals.hidden), count, saliency)


def anchors(relevance: Tensor, features: Tensor, count: int) -> Tensor:
    """Tokens in the order of relevance [N], until enough of them were novel in `features` [N, d]."""
    limit = max(1, int(ANCHOR_LIMIT * count))
    first = min(max(1, round_half_up(FIRST_ANCHORS * count)), limit)
    order = largest(relevance, limit)
    similarity = cosine(features[order[first:]], features[order[:first]])
    novel = (1 - similarity.amax(-1) > NOVELTY).cumsum(0)
    return order[: first + int((novel < PATIENCE).sum()) + int((novel >= PATIENCE).any())]
