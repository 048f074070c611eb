"""FSR: focuses on relevant and attended tokens, scans for tokens far from them, and refines the scan by merging."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.registry import register_method
from covist.methods.relevance import Sign, SignedRelevance, clip_relevance, spread
from covist.methods.shared import cosine, distances, expand, largest, received_attention, without
from covist.reduction import Reduction
from covist.state import VisualState

RELEVANCE_POWER = 3


@register_method
class FSR(SignedRelevance):
    name = "fsr"
    default_positions = "reindex"
    writes_content = True
    options: ClassVar = {"focus": "share of the evidence that the focus holds, above 0 and at most 1"}
    info = MethodInfo(
        paper="Focus-Scan-Refine: From Human Visual Perception to Efficient Visual Token Pruning (arXiv 2602.05809)",
        acts="before the decoder",
        signals="class attention, projected embeddings, CLIP text",
        budget="exactly K in every layer",
        criterion="instruction",
        needs=("class-attention", "encoder-features", "embeddings", "clip-text"),
        licence="no code",
        published=(
            "Evidence phi is the cube of CLIP's relevance (min-max, as in CDPruner) times the head-mean class "
            "attention; without CLIP's text space (Qwen) it is the attention alone. The focus is the smallest set that "
            "holds 0.9 of all phi. The scan adds the tokens farthest (1 - cosine) from everything chosen, up to K. "
            "Each remaining token finds its most similar scanned token; the most similar of them, as many as were "
            "scanned, are merged into theirs by a mean weighted by phi. The focus stays unchanged."
        ),
        ours=(
            "Written from the text of the paper, without code. The focus has at most K tokens: if 0.9 of phi needs "
            "more, nothing is scanned. Choices that the paper leaves open: relevance is negated, as in CDPruner, "
            "unless `relevance` reverses it; distance, similarity and merging use projected embeddings; the scanned "
            "token is part of its mean and keeps its index; tokens are in raster order and renumbered. Tiles form one "
            "pool. Without a class token, the mean received attention is used."
        ),
        checked="reference: FSR (focus, scan and merged features)",
    )

    def __init__(self, relevance: Sign | None = "negated", focus: float = 0.9, **options: Any):
        super().__init__(relevance, **options)
        if not (isinstance(focus, (int, float)) and 0 < focus <= 1):
            raise CovistError(f"focus={focus!r}: choose a share above 0 and at most 1")
        self.focus = focus

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        evidence = self.evidence(image)
        focus = leading(evidence, self.focus, count)
        chosen = expand(focus, distances(state.features), count)
        features, weights = refine(state, chosen[len(focus) :], without(chosen, state.count), evidence)
        return Reduction(state.replace(features=features, weights=weights).restrict(chosen.sort().values))

    def evidence(self, image: ImageContext) -> Tensor:
        """phi, [N]."""
        attention = received_attention(image.signals)
        relevance = None if self.relevance is None else clip_relevance(image, self.relevance)
        return attention if relevance is None else spread(relevance).pow(RELEVANCE_POWER) * attention


def leading(evidence: Tensor, share: float, most: int) -> Tensor:
    """The fewest tokens that hold a share of the evidence [N], at most `most`, the strongest first."""
    order = largest(evidence, len(evidence))
    held = evidence[order].double().cumsum(0)
    return order[: min(most, 1 + int((held < share * held[-1]).sum()))]


def refine(state: VisualState, anchors: Tensor, removed: Tensor, evidence: Tensor) -> tuple[Tensor, Tensor]:
    """Features [N, d] and weights [N] after merging the removed tokens [R] that resemble an anchor [A] most into it.

    As many tokens are merged as there are anchors.
    """
    features, weights = state.features.clone(), state.weights.clone()
    if not len(anchors):
        return features, weights
    closest, anchor = cosine(state.features[removed], state.features[anchors]).max(-1)
    merged = largest(closest, len(anchors))
    tokens = torch.cat([anchors, removed[merged]])
    cluster = torch.cat([torch.arange(len(anchors), device=anchors.device), anchor[merged]])
    share = evidence[tokens].double().clamp(min=torch.finfo(torch.float32).tiny)[:, None]  # or a plain mean
    content = torch.cat([share * state.features[tokens], share], dim=1)
    sums = content.new_zeros(len(anchors), content.shape[1]).index_add_(0, cluster, content)
    features[anchors] = (sums[:, :-1] / sums[:, -1:]).to(features.dtype)
    weights[anchors] = cluster.bincount(minlength=len(anchors)).to(weights)
    return features, weights
