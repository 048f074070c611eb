"""Cen-Prune over DivPrune, ZOO-Prune or CDPruner: centred features, weighted by how rare each token is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.published.cdpruner import CDPruner, most_probable_subset, question_relevance
from covist.methods.published.divprune import DivPrune, most_isolated
from covist.methods.published.zoo_prune import ZooPrune
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


@register_published
class CenPruneDivPrune(CenPrune, DivPrune):
    name = "cen-prune-divprune"

    def choose(self, image: ImageContext, centred: Centred, count: int) -> Tensor:
        distance = distances(centred.features)
        return expand(most_isolated(distance), distance, count, centred.rarity)


@register_published
class CenPruneZooPrune(CenPrune, ZooPrune):
    name = "cen-prune-zoo-prune"

    def choose(self, image: ImageContext, centred: Centred, count: int) -> Tensor:
        saliency = centred.rarity * self.sensitivity(image.signals)
        return expand(first_best(saliency)[None], distances(centred.features), count, saliency)


@register_published
class CenPruneCDPruner(CenPrune, CDPruner):
    name = "cen-prune-cdpruner"

    def choose(self, image: ImageContext, centred: Centred, count: int) -> Tensor:
        weight = centred.rarity * question_relevance(image, self.relevance)
        chosen = most_probable_subset(cosine(centred.features), weight, count)
        others = weight.index_fill(0, chosen, -torch.inf)
        return torch.cat([chosen, largest(others, count - len(chosen))])
