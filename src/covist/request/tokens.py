"""Visual tokens: the one definition that every budget, report, table and figure counts by.

A visual token is a *content* token: a place of the decoder's sequence that shows a part of an image. Markers that a
family puts between them (the newlines of LLaVA-NeXT) are counted apart; no method removes them, and a budget does not
include them. Counts are per image or video: with several of them they are averaged, with several stages over the
decoder's layers. A budget that is a count is meant for each image, and for each frame of a video.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch

from covist.contract.signals import ImageSignals, PlacedSignals
from covist.engine.decoder import plain_flops
from covist.families.registry import family_for
from covist.request.inputs import Request


@dataclass(frozen=True)
class VisualTokens:
    """Tokens of one image or video in the prompt, uncompressed."""

    content: int
    markers: int
    frames: int = 1


@torch.inference_mode()
def encoded_signals(model: Any, request: Request) -> list[ImageSignals]:
    """What the vision tower says about each image and segment of a video, without running the decoder."""
    family = family_for(model)
    found: list[ImageSignals] = []
    hooks = family.capture(found.extend)
    try:
        request.encode(model)
    finally:
        for hook in hooks:
            hook.remove()
    ids = request.prompts["input_ids"][0]
    rows = family.image_mask(ids, None).nonzero()[:, 0].split([len(signals.content) for signals in found])
    pieces = [
        PlacedSignals(signals, own, int(own[0]), int(own[-1]) + 1) for signals, own in zip(found, rows, strict=True)
    ]
    return [image.signals for image in family.images_in(pieces, ids)]


def visual_tokens(model: Any, request: Request) -> list[VisualTokens]:
    """The tokens of each image and each video of a request."""
    counts: list[VisualTokens] = []
    for signals in encoded_signals(model, request):
        content = int(signals.content.sum())
        own = (content, len(signals.content) - content, signals.grid.frames)
        if signals.continues:
            before = counts.pop()
            own = (before.content + own[0], before.markers + own[1], before.frames + own[2])
        counts.append(VisualTokens(*own))
    return counts


def mean_content(tokens: list[VisualTokens]) -> float:
    """Content tokens, averaged over images and videos."""
    return mean(item.content for item in tokens)


def uncompressed_flops(model: Any, request: Request) -> float:
    """Decoder prefill of one prompt as it is, Eq. 19."""
    return plain_flops(family_for(model).decoder, request.length)
