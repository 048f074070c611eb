"""FSR: focuses on relevant and attended tokens, scans for tokens far from them, and refines the scan by merging."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.published import register_published
from covist.methods.relevance import Sign, SignedRelevance, clip_relevance, spread
from covist.methods.shared import cosine, distances, expand, largest, received_attention, rewritten, without
from covist.reduction import Reduction
from covist.state import VisualState

RELEVANCE_POWER = 3


@register_published
class FSR(SignedRelevance):
    name = "fsr"
    default_positions = "reindex"
    writes_content = True
    options: ClassVar = {"focus": "share of the evidence that the focus holds, above 0 and at most 1"}

    def __init__(self, relevance: Sign | None = "negated", focus: float = 0.9, **options: Any):
        super().__init__(relevance, **options)
        if not (isinstance(focus, (int, float)) and 0 < focus <= 1):
            raise CovistError(f"focus={focus!r}: choose a share above 0 and at most 1")
        self.focus = focus

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        evidence = self.evidence(image)
        focus = leading(evidence, self.focus, count)
        chosen = expand(focus, distances(state.features), count)
        refined = refine(state, chosen[len(focus) :], without(chosen, state.count), evidence)
        return Reduction(refined.restrict(chosen.sort().values))

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


def refine(state: VisualState, anchors: Tensor, removed: Tensor, evidence: Tensor) -> VisualState:
    """Merge those of the removed tokens [R] that resemble an anchor [A] most into it, as many as there are anchors."""
    if not len(anchors):
        return state
    closest, anchor = cosine(state.features[removed], state.features[anchors]).max(-1)
    merged = largest(closest, len(anchors))
    tokens = torch.cat([anchors, removed[merged]])
    cluster = torch.cat([torch.arange(len(anchors), device=anchors.device), anchor[merged]])
    share = evidence[tokens].double().clamp(min=torch.finfo(torch.float32).tiny)[:, None]  # or a plain mean
    content = torch.cat([share * state.features[tokens], share], dim=1)
    sums = content.new_zeros(len(anchors), content.shape[1]).index_add_(0, cluster, content)
    sizes = cluster.bincount(minlength=len(anchors)).to(state.weights)
    return rewritten(state, anchors, sums[:, :-1] / sums[:, -1:], sizes)
