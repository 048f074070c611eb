"""The concentration reference of some images, for answers that do not depend on what was seen before."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import torch

from covist.config import CovistConfig
from covist.contract.signals import ImageSignals
from covist.formulas.evidence import mix_heads, visual_evidence
from covist.formulas.ops import mass_norm
from covist.request.inputs import Request
from covist.request.loading import LoadedModel
from covist.request.tokens import encoded_images

REFERENCE_IMAGES = 32
"""Images of a suite or a task that settle its reference."""
_DIGITS = 6


def mean_concentration(loaded: LoadedModel, requests: Iterable[Request]) -> float:
    """Mean concentration of the encoder attention over the images and videos of some requests."""
    found = [concentration(image.signals) for request in requests for image in encoded_images(loaded, request)]
    return round(fmean(found), _DIGITS)


@torch.inference_mode()
def concentration(signals: ImageSignals) -> float:
    """How much of an image's attention lies on few of its tokens."""
    attention = mass_norm(signals.packed(mix_heads(signals.attention)))
    return visual_evidence(attention, signals.keys, signals.embeddings, signals.grid, CovistConfig()).concentration
