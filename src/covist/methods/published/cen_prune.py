"""Cen-Prune over DivPrune, ZOO-Prune or CDPruner: centred features, weighted by how rare each token is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.methods.published.cdpruner import CDPruner, most_probable_subset, question_relevance
from covist.methods.published.divprune import DivPrune, most_isolated
from covist.methods.published.zoo_prune import ZooPrune
from covist.methods.registry import register_method
from covist.methods.shared import TIE, cosine, distances, expand, first_best, largest, stretched


@dataclass(frozen=True)
class Centred:
    """Centred features of an image, and the rarity of its tokens."""

    features: Tensor  # [N, d] minus their mean
    rarity: Tensor  # g, [N]: how little each token resembles the others


class CenPrune(Method):
    """A base method on centred features, weighted by rarity."""

    def select(self, image: ImageContext, count: int) -> Tensor:
        return self.choose(image, centre(image.signals), count)

    @abstractmethod
    def choose(self, image: ImageContext, centred: Centred, count: int) -> Tensor:
        """The tokens that the base method keeps [count]."""


def centre(signals: ImageSignals) -> Centred:
    """Centre projected embeddings, or encoder features if a token merges several patches."""
    patches = merged_patches(signals)
    if patches is None:
        features = signals.embeddings.float()
        rarity = stretched(-likeness(features))
    else:
        features = patches / deviation(patches)
        rare = -likeness(features)
        rarity = torch.sigmoid((rare - rare.mean()) / deviation(rare))
    centred = features - features.mean(0)
    is_mean = centred.norm(dim=-1) <= TIE * features.norm(dim=-1)  # the difference is only rounding
    return Centred(centred.masked_fill(is_mean[:, None], 0), rarity)


def merged_patches(signals: ImageSignals) -> Tensor | None:
    """Mean encoder features of the patches that each token merges [N, v]; None if a token is one patch.

    The patches of a token lie side by side in its features, while its keys are their mean.
    """
    if signals.class_features is not None:
        return None
    patches = signals.hidden.shape[-1] // signals.keys.shape[-1]
    return signals.hidden.float().unflatten(-1, (patches, -1)).mean(1) if patches > 1 else None


def likeness(features: Tensor) -> Tensor:
    """Mean cosine of each token [N, d] to all others -> [N]."""
    similarity = cosine(features)
    return (similarity.sum(-1) - similarity.diagonal()) / (len(similarity) - 1)


def deviation(values: Tensor) -> Tensor:
    """Standard deviation over tokens [N, ...] -> [...]; one if all are equal up to rounding."""
    spread = values.std(0, correction=0)
    return torch.where(spread > TIE * values.abs().amax(0), spread, 1.0)


def info_over(base: type[Method], published: str, ours: str) -> MethodInfo:
    """The common `MethodInfo`, with what is special about a base."""
    return MethodInfo(
        paper=(
            "Centering before Pruning: Lightweight Geometry Correction for Diversity-Based Visual Token Pruning in "
            "LVLMs (arXiv 2608.30263)"
        ),
        acts="before the decoder",
        signals=f"those of {base.name}, and encoder features if a token merges several patches",
        budget="exactly K in every layer",
        criterion="diversity",
        needs=("encoder-features", *(need for need in base.info.needs or () if need != "encoder-features")),
        licence="no code",
        published=(
            "Cosines S' are those of projected embeddings minus their mean over the image. The weight g of a token is "
            "its negated mean cosine to all others before centring, min-max. For Qwen, encoder features are used "
            "instead: the mean over the patches that a token merges, divided by the standard deviation of each "
            f"dimension before centring; g is the sigmoid of its standard score. {published}"
        ),
        ours=(
            "Written from the text of the paper, without code. Every tower whose projector merges patches that lie "
            "side by side follows the rule for Qwen, all others that for LLaVA. If all tokens resemble each other "
            "equally, g is the same for all. Deviations are those of the population. Tiles form one pool; the original "
            "keeps the same share of each. "
            f"{ours}"
        ),
        checked=f"reference: Cen-Prune (kept tokens over {base.name})",
    )


@register_method
class CenPruneDivPrune(CenPrune, DivPrune):
    name = "cen-prune-divprune"
    info = info_over(
        DivPrune,
        "The first token is DivPrune's on S'; each next token has the largest g times its smallest 1 - S'.",
        "As in DivPrune, a chosen token is never chosen again.",
    )

    def choose(self, image: ImageContext, centred: Centred, count: int) -> Tensor:
        distance = distances(centred.features)
        return expand(most_isolated(distance), distance, count, centred.rarity)


@register_method
class CenPruneZooPrune(CenPrune, ZooPrune):
    name = "cen-prune-zoo-prune"
    info = info_over(
        ZooPrune,
        "ZOO-Prune's selection on S'.",
        "The paper does not say how g enters: here it multiplies the sensitivity, also for the first token. "
        "Directions, step and cost are those of zoo-prune.",
    )

    def choose(self, image: ImageContext, centred: Centred, count: int) -> Tensor:
        saliency = centred.rarity * self.sensitivity(image.signals)
        return expand(first_best(saliency)[None], distances(centred.features), count, saliency)


@register_method
class CenPruneCDPruner(CenPrune, CDPruner):
    name = "cen-prune-cdpruner"
    info = info_over(
        CDPruner,
        "CDPruner's greedy MAP with the kernel diag(r g) S' diag(r g).",
        "r, its sign and its replacement without CLIP's text space are as in cdpruner. Beyond the rank of the kernel, "
        "where cdpruner stops, the tokens with the largest r g fill the budget.",
    )

    def choose(self, image: ImageContext, centred: Centred, count: int) -> Tensor:
        weight = centred.rarity * question_relevance(image, self.relevance)
        chosen = most_probable_subset(cosine(centred.features), weight, count)
        others = weight.index_fill(0, chosen, -torch.inf)
        return torch.cat([chosen, largest(others, count - len(chosen))])
