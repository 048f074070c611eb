"""How many requests fit on a GPU at once: the memory left by the weights, in blocks of cached keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from covist.plan import HALF, Geometry
from covist.schedule import kv_bytes

BLOCK = 16
"""Tokens per block of vLLM's cache; requests do not share blocks."""


@dataclass(frozen=True)
class Card:
    """A GPU: its memory in bytes, and the share that vLLM uses (`--gpu-memory-utilization`)."""

    memory: float = 80e9
    share: float = 0.9


def token_bytes(geometry: Geometry, columns: int = 0) -> int:
    """Bytes of a token in the cache in fp16 or bf16, with `columns` extra dimensions per head.

    Text tokens and values have the extra dimensions too, because a cache has one width.
    """
    return int(kv_bytes([1] * geometry.layers, geometry.kv_heads, geometry.head_width + columns, HALF))


def concurrent_requests(
    geometry: Geometry, parameters: float, tokens: int, columns: int = 0, card: Card | None = None
) -> int:
    """How many requests of `tokens` tokens each fit into memory with the weights of a model of so many parameters.

    This ignores activations and the encoder's working memory, which vLLM subtracts.
    """
    card = card or Card()
    free = card.memory * card.share - HALF * parameters
    request = ceil(tokens / BLOCK) * BLOCK * token_bytes(geometry, columns)
    return max(0, int(free // request))
