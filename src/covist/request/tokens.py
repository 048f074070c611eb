"""Visual tokens: the one definition that every budget, report, table and figure counts by.

A visual token is a *content* token: a place of the decoder's sequence that shows a part of an image. Markers that a
family puts between them (the newlines of LLaVA-NeXT) are counted apart; no method removes them, and a budget does not
include them. Counts are per image: with several images they are averaged over the images, with several stages over
the decoder's layers.
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
    """Tokens of one image in the prompt, uncompressed."""

    content: int
    markers: int


@torch.inference_mode()
def encoded_signals(model: Any, request: Request) -> list[ImageSignals]:
    """What the vision tower says about each image of a request, without running the decoder."""
    family = family_for(model)
    found: list[ImageSignals] = []
    hooks = family.capture(found.extend)
    try:
        encode = model.get_video_features if "pixel_values_videos" in request.images else model.get_image_features
        encode(**request.images, return_dict=True)
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
    """The tokens of each image of a request."""
    contents = [signals.content for signals in encoded_signals(model, request)]
    return [VisualTokens(int(content.sum()), int((~content).sum())) for content in contents]


def mean_content(tokens: list[VisualTokens]) -> float:
    """Content tokens, averaged over images."""
    return mean(item.content for item in tokens)


def uncompressed_flops(model: Any, request: Request) -> float:
    """Decoder prefill of one prompt as it is, Eq. 19."""
    return plain_flops(family_for(model).decoder, request.length)
