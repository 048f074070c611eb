"""HoloV: every chunk of the image keeps tokens in proportion to its attention and its variety."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.shared import cosine, largest, received_attention

CHUNKS = 16
ATTENTION_SCALE, VARIETY_SCALE = 1000.0, 0.09


@register_published
class HoloV(Method):
    name = "holov"
    default_positions = "reindex"

    def select(self, image: ImageContext, count: int) -> Tensor:
        attention = received_attention(image.signals)
        chunks = torch.arange(len(attention), device=attention.device).tensor_split(min(CHUNKS, len(attention)))
        scores = torch.stack([chunk_score(attention[c], image.signals.embeddings[c]) for c in chunks])
        places = quotas(scores, [len(chunk) for chunk in chunks], count)
        return torch.cat([c[largest(attention[c], quota)] for c, quota in zip(chunks, places, strict=True)])


def chunk_score(attention: Tensor, embeddings: Tensor) -> Tensor:
    """Mean importance of a chunk: attention [n] and the variance of the cosines between its embeddings [n, d]."""
    others = max(1, len(attention) - 1)
    similarity = cosine(embeddings).fill_diagonal_(0)
    mean = similarity.sum(-1, keepdim=True) / others
    variety = (similarity - mean).square().sum(-1) / others
    scaled = ATTENTION_SCALE * attention
    balance = scaled.mean() / (variety.mean() + 1e-6)
    return (scaled + VARIETY_SCALE * variety * balance).mean()


def quotas(scores: Tensor, sizes: list[int], count: int) -> list[int]:
    """Places of each chunk: in proportion to its score [C], never more than its size, `count` in all."""
    places = torch.floor(count * scores / scores.sum()).long().tolist()
    order = largest(scores, len(sizes)).tolist()
    for chunk in order[: count - sum(places)]:
        places[chunk] += 1
    places = [min(quota, size) for quota, size in zip(places, sizes, strict=True)]
    while sum(places) < count:
        for chunk in order:
            if places[chunk] < sizes[chunk] and sum(places) < count:
                places[chunk] += 1
    return places
