"""How many requests a card holds at once: what is left beside the weights, in blocks of cached keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from covist.plan import HALF, Geometry
from covist.schedule import kv_bytes

BLOCK = 16
"""Tokens of a block of vLLM's cache, which no two requests share."""


@dataclass(frozen=True)
class Card:
    """An accelerator: its bytes, and the share of them that vLLM takes (`--gpu-memory-utilization`)."""

    memory: float = 80e9
    share: float = 0.9


def token_bytes(geometry: Geometry, columns: int = 0) -> int:
    """What the cache keeps of a token in fp16 or bf16, in heads that are `columns` wider than the model's.

    Text pays for the further dimensions too, and so do values, because a cache has one width.
    """
    return int(kv_bytes([1] * geometry.layers, geometry.kv_heads, geometry.head_width + columns, HALF))


def concurrent_requests(
    geometry: Geometry, parameters: float, tokens: int, columns: int = 0, card: Card | None = None
) -> int:
    """How many requests of `tokens` tokens each fit beside the weights of a model with so many parameters.

    Neither activations nor the encoder's working memory are counted, which vLLM takes off before.
    """
    card = card or Card()
    free = card.memory * card.share - HALF * parameters
    request = ceil(tokens / BLOCK) * BLOCK * token_bytes(geometry, columns)
    return max(0, int(free // request))
