"""The vision stage of VisionTrim: tokens with the most attention, and text-guided tokens that absorb the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead
from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.formulas.ops import round_half_up
from covist.methods.layout import NO_TOKEN, neighbours, rows_and_columns
from covist.methods.published import register_published
from covist.methods.shared import cluster_means, cosine, largest, received_attention, rewritten, without
from covist.reduction import Reduction
from covist.state import VisualState

RECEIVED = EncoderRead("received")
DOMINANT_SHARE = 48 / 64
ROUNDS = 3
WINDOW = tuple((row, column) for row in (-1, 0, 1) for column in (-1, 0, 1))
DISTANCE_WEIGHT = 0.5
TINY = 1e-30
"""Smallest divisor, for images in which nothing varies."""
Scores = Literal["coded", "paper"]
Relation = Callable[[Tensor], Tensor]
"""From encoder features [n, v] to their cosines with the text tokens [n, T]."""


@register_published
class VisionTrim(Method):
    name = "visiontrim"
    default_positions = "reindex"
    encoder_requests = (RECEIVED,)
    uses_clip_text = True
    writes_content = True
    options: ClassVar = {
        "scores": "how dominant tokens are chosen. coded: by class attention and attention received from other "
        "patches, as in the authors' code; paper: the second term is the similarity to the 3 x 3 neighbours"
    }

    def __init__(self, scores: Scores = "coded", **options: Any):
        super().__init__(**options)
        if scores not in ("coded", "paper"):
            raise CovistError(f"scores={scores!r}: choose coded or paper")
        self.scores = scores

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        score = coded_score(image) if self.scores == "coded" else published_score(image)
        dominant = largest(score, max(1, round_half_up(DOMINANT_SHARE * count)))
        rest = without(dominant, state.count)
        places = count - len(dominant)
        if places == 0:
            return Reduction(state.restrict(dominant.sort().values))
        relation = text_relation(image)
        relevance = score[rest] if relation is None else relation(signals.hidden[rest]).mean(-1)
        targets = rest[largest(relevance, places).sort().values]
        members = without(torch.cat([dominant, targets]), state.count)
        merged, sizes = complement(signals.hidden[targets], signals.hidden[members], relation)
        features = signals.project(merged.to(signals.hidden.dtype))
        completed = rewritten(state, targets, features, state.weights[targets] + sizes)
        return Reduction(completed.restrict(torch.cat([dominant, targets]).sort().values))


def coded_score(image: ImageContext) -> Tensor:
    """Class attention and attention received from other patches, [N]."""
    everywhere, itself, of_class = image.signals.read(RECEIVED)
    parts = (received_attention(image.signals), everywhere - itself - of_class)
    return sum((part / part.norm() for part in parts), torch.zeros_like(parts[0])) / len(parts)


def published_score(image: ImageContext) -> Tensor:
    """Class attention and similarity to the neighbourhood, [N]; the one that varies more counts less."""
    attention, local = received_attention(image.signals), local_likeness(image)
    global_spread, local_spread = attention.var(), local.var()
    return (local_spread * attention + global_spread * local) / (global_spread + local_spread).clamp(min=TINY)


def local_likeness(image: ImageContext) -> Tensor:
    """Similarity of each token to its 3 x 3 neighbourhood, normalised over all tokens [N]."""
    features = image.signals.hidden.float()
    window = neighbours(image.grid, WINDOW).to(features.device)  # [N, 9]
    spread, place_spread = features.var().clamp(min=TINY), rows_and_columns(image.grid).float().var()
    closeness = torch.zeros(window.shape, dtype=features.dtype, device=features.device)
    for slot, (there, step) in enumerate(zip(window.unbind(1), WINDOW, strict=True)):
        apart = (features - features[there]).square().sum(-1) / spread
        distance = float((step[0] ** 2 + step[1] ** 2) / place_spread)
        closeness[:, slot] = torch.where(there == NO_TOKEN, 0, -apart - DISTANCE_WEIGHT * distance)
    return closeness.mean(-1).softmax(0)


def text_relation(image: ImageContext) -> Relation | None:
    """Cosines of features with the tokens of the text, in CLIP's space or the decoder's; None without text."""
    signals, tower, words = image.signals, image.text_tower, image.text_features
    if tower is not None and words is not None and signals.text_space is not None:
        states = tower.encode_padded(image.instruction.text)[0, : 1 + len(words)]  # with the begin token
        width = signals.text_space(signals.hidden[:1]).shape[-1]  # several layers may lie side by side
        return lambda features: cosine(tower.project_patches(features[:, -width:]), states).to(features.device)
    embeddings = image.instruction.embeddings
    if not len(embeddings):
        return None
    dtype, device = signals.hidden.dtype, signals.hidden.device
    return lambda features: cosine(signals.project(features.to(dtype)), embeddings.to(device))


def complement(targets: Tensor, members: Tensor, relation: Relation | None) -> tuple[Tensor, Tensor]:
    """Features of the complement tokens [C, v] after all rounds, and how many of `members` [M, v] each has then."""
    merged = targets.float()
    sizes = merged.new_zeros(len(targets))
    if not len(members):
        return merged, sizes
    to_text = None if relation is None else relation(members.float())  # [M, T]
    for _ in range(ROUNDS):
        ties = cosine(members, merged) if to_text is None or relation is None else to_text @ relation(merged).T
        means, sizes = cluster_means(members, ties.argmax(-1), len(targets))
        merged = merged + means
    return merged, sizes
