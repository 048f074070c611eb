"""AnchorPrune: anchors that are relevant to the question, then context that is salient and new."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.formulas.ops import mass_norm, round_half_up
from covist.methods.published import register_published
from covist.methods.relevance import clip_relevance, embedding_cosines
from covist.methods.shared import cosine, distances, expand, largest, received_attention

FIRST_ANCHORS, ANCHOR_LIMIT = 5 / 32, 0.5
NOVELTY, PATIENCE = 0.2, 3


@register_published
class AnchorPrune(Method):
    name = "anchorprune"
    default_positions = "reindex"
    uses_clip_text = True

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
