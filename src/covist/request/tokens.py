"""Visual tokens: the definition that every budget, report, table and figure uses.

A visual token is a *content* token: a position of the decoder's sequence that shows a part of an image. Markers that a
family puts between them (the newlines of LLaVA-NeXT, the text between two tiles or frames) are counted separately; no
method removes them, and a budget does not include them. Counts are per image or video, averaged over several of them,
and over the decoder's layers if there are several stages. A budget that is a count applies to each image, and to each
frame of a video.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch

from covist.contract.signals import ImageSignals, PlacedSignals
from covist.contract.text_config import geometry_of
from covist.families.registry import family_for
from covist.request.inputs import Request
from covist.request.loading import LoadedModel


@dataclass(frozen=True)
class VisualTokens:
    """Tokens of one image or video in the prompt, uncompressed."""

    content: int
    markers: int
    frames: int = 1


@torch.inference_mode()
def encoded_images(loaded: LoadedModel, request: Request) -> list[PlacedSignals]:
    """The vision tower's signals of each image or video segment, and its place in the prompt, without the decoder."""
    family = family_for(loaded.model)
    family.tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)
    found: list[ImageSignals] = []
    hooks = family.capture(found.extend)
    try:
        request.encode(loaded.model)
    finally:
        for hook in hooks:
            hook.remove()
    ids = request.prompts["input_ids"][0]
    rows = family.image_mask(ids, None).nonzero()[:, 0].split([len(signals.content) for signals in found])
    pieces: list[PlacedSignals] = []
    for signals, own in zip(found, rows, strict=True):
        pieces.append(PlacedSignals.after(pieces, signals, own))
    return family.images_in(pieces, ids)


def visual_tokens(loaded: LoadedModel, request: Request) -> list[VisualTokens]:
    """The tokens of each image and each video of a request."""
    counts: list[VisualTokens] = []
    for image in encoded_images(loaded, request):
        content = int(image.signals.content.sum())
        own = (content, image.end - image.start - content, image.signals.grid.frames)
        if image.signals.continues:
            before = counts.pop()
            own = (before.content + own[0], before.markers + own[1], before.frames + own[2])
        counts.append(VisualTokens(*own))
    return counts


def mean_content(tokens: list[VisualTokens]) -> float:
    """Content tokens, averaged over images and videos."""
    return mean(item.content for item in tokens)


def uncompressed_flops(model: Any, request: Request) -> float:
    """FLOPs of the decoder prefill of one uncompressed prompt, Eq. 19."""
    decoder = family_for(model).decoder
    layers = len(decoder.layers)
    return geometry_of(decoder.config, layers=layers).flops([request.length] * layers)
