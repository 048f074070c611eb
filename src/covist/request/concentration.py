"""The concentration reference of some images, so that answers do not depend on earlier images."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import torch

from covist.config import CovistConfig
from covist.contract.signals import ImageSignals
from covist.errors import CovistError
from covist.formulas.evidence import mix_heads, visual_evidence
from covist.formulas.ops import mass_norm
from covist.request.images import image_files, load_image
from covist.request.inputs import Request, prepare
from covist.request.loading import LoadedModel
from covist.request.tokens import encoded_images

REFERENCE_IMAGES = 32
"""The number of images of a suite or a task that determine its reference."""
MEASURED = {"tiny": 0.172417, "tiny-next": 0.098189}
"""References of the embedded models, on the first images of their suites:

covist export --suite scenes --limit 32 --out scenes && covist concentration --model tiny --images scenes/images
covist export --suite scenes-hd --limit 32 --out hd && covist concentration --model tiny-next --images hd/images
"""
_DIGITS = 6
_ANY_PROMPT = "what is this?"  # the tower does not see it


def mean_concentration(loaded: LoadedModel, requests: Iterable[Request]) -> float:
    """Mean concentration of the encoder attention over the images and videos of some requests."""
    found = [concentration(image.signals) for request in requests for image in encoded_images(loaded, request)]
    return round(fmean(found), _DIGITS)


def folder_concentration(loaded: LoadedModel, folder: Path, limit: int | None = None) -> tuple[float, int]:
    """`mean_concentration` of the images in a folder, and the number of images."""
    files = image_files(folder) if os.path.isdir(folder) else []
    if not files:
        raise CovistError(f"{folder} is not a folder with images")
    if limit is not None and limit < 1:
        raise CovistError(f"limit must be at least 1, got {limit}")
    files = files[:limit]
    return mean_concentration(loaded, (prepare(loaded, [load_image(file)], _ANY_PROMPT) for file in files)), len(files)


@torch.inference_mode()
def concentration(signals: ImageSignals) -> float:
    """How strongly the attention to an image is concentrated on few of its tokens."""
    attention = mass_norm(signals.packed(mix_heads(signals.attention)))
    return visual_evidence(attention, signals.keys, signals.embeddings, signals.grid, CovistConfig()).concentration
