"""Random tokens: the baseline that every selection must beat.

The choice depends on the seed and on the image's content, so an image gets the same tokens in every run and every
batch, and two images do not share a pattern.
"""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.contract.method import Method, MethodInfo
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.errors import CovistError
from covist.methods.registry import register_method

PROBES, LEVELS = 8, 64


class Seeded(Method):
    """A method with a random part; list it before the other base classes."""

    options: ClassVar = {"seed": "an integer; another seed draws other tokens"}

    def __init__(self, seed: int = 0, **options: Any):
        super().__init__(**options)
        if not isinstance(seed, int):
            raise CovistError(f"seed={seed!r}: choose an integer")
        self.seed = seed


@register_method
class Random(Seeded):
    name = "random"
    default_positions = "reindex"
    info = MethodInfo(
        paper="none",
        acts="before the decoder",
        signals="none",
        budget="exactly K in every layer",
        criterion="nothing",
        needs=(),
    )

    def select(self, image: ImageContext, count: int) -> Tensor:
        return drawn(image.signals, image.grid.size, count, self.seed)


def drawn(signals: ImageSignals, total: int, count: int, seed: int) -> Tensor:
    """`count` of the numbers below `total`, always the same for the same image."""
    embeddings = signals.embeddings
    generator = torch.Generator().manual_seed(seed + fingerprint(embeddings))
    return torch.randperm(total, generator=generator)[:count].to(embeddings.device)


def fingerprint(embeddings: Tensor) -> int:
    """A hash of the content [N, d], coarse enough to ignore the rounding of another batch size."""
    probes = torch.linspace(0, len(embeddings) - 1, PROBES).long()
    norms = embeddings[probes.to(embeddings.device)].float().norm(dim=-1)
    levels = (norms / norms.max().clamp(min=1e-8) * LEVELS).round().long()
    return zlib.crc32(bytes(levels.tolist()))
