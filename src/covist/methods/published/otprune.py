"""OTPrune: the tokens whose products with all others span the largest volume."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.published.cdpruner import largest_determinant

ENERGY = 0.01


@register_published
class OTPrune(Method):
    name = "otprune"
    default_positions = "reindex"

    def select(self, image: ImageContext, count: int) -> Tensor:
        return largest_determinant(kernel(image.signals.embeddings), count, floor=1.0)


def kernel(features: Tensor) -> Tensor:
    """I + 0.01 S S^T [N, N], with S the products of tokens [N, d] whose channels have norm one over all tokens."""
    features = features.double()  # gains are one plus a little, of which float32 would lose most
    lengths = features.norm(dim=0)
    channels = features / torch.where(lengths > 0, lengths, 1.0)
    products = channels @ channels.T
    return torch.eye(len(products), dtype=products.dtype, device=products.device) + ENERGY * products @ products.T
