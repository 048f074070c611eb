"""Visual tokens: the one definition that every budget, report, table and figure counts by.

A visual token is a *content* token: a place of the decoder's sequence that shows a part of an image. Markers that a
family puts between them (the newlines of LLaVA-NeXT, the text between two tiles) are counted apart; no method removes
them, and a budget does not include them. Counts are per image: with several images they are averaged over the images,
with several stages over the decoder's layers.
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
from covist.request.loading import LoadedModel


@dataclass(frozen=True)
class VisualTokens:
    """Tokens of one image in the prompt, uncompressed."""

    content: int
    markers: int


@torch.inference_mode()
def encoded_images(loaded: LoadedModel, request: Request) -> list[PlacedSignals]:
    """What the vision tower says about each image of a request and where it stands, without running the decoder."""
    family = family_for(loaded.model)
    family.tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)
    found: list[ImageSignals] = []
    hooks = family.capture(found.extend)
    try:
        model, is_video = loaded.model, "pixel_values_videos" in request.images
        encode = model.get_video_features if is_video else model.get_image_features
        encode(**request.images, return_dict=True)
    finally:
        for hook in hooks:
            hook.remove()
    ids = request.prompts["input_ids"][0]
    rows = family.image_mask(ids, None).nonzero()[:, 0].split([len(signals.content) for signals in found])
    pieces = [
        PlacedSignals(signals, own, int(own[0]), int(own[-1]) + 1) for signals, own in zip(found, rows, strict=True)
    ]
    return family.images_in(pieces, ids)


def visual_tokens(loaded: LoadedModel, request: Request) -> list[VisualTokens]:
    """The tokens of each image of a request."""
    images = encoded_images(loaded, request)
    contents = [int(image.signals.content.sum()) for image in images]
    return [
        VisualTokens(content, image.end - image.start - content)
        for image, content in zip(images, contents, strict=True)
    ]


def mean_content(tokens: list[VisualTokens]) -> float:
    """Content tokens, averaged over images."""
    return mean(item.content for item in tokens)


def uncompressed_flops(model: Any, request: Request) -> float:
    """Decoder prefill of one prompt as it is, Eq. 19."""
    return plain_flops(family_for(model).decoder, request.length)
