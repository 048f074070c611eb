"""How many tokens a request may take: by the positions of the model, and by the memory of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from covist.serve.errors import Refusal
from covist.serve.limits import Limits

SHARE = 0.5
"""Of the memory that is free once the model is loaded, for keys and values; the rest is for activations and images."""
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class Capacity:
    """What model and machine allow; None where nobody knows.

    positions: that the model was made for
    tokens: whose keys and values fit into the memory, of all batches together
    """

    positions: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, model: Any, cache_bytes: float) -> Capacity:
        """Measure it; `cache_bytes` are those of one token in all layers."""
        free = free_memory(model.device)
        tokens = None if free is None or cache_bytes <= 0 else int(SHARE * free / cache_bytes)
        return cls(getattr(model.config.get_text_config(), "max_position_embeddings", None), tokens)

    def batch_tokens(self, limits: Limits) -> int:
        """Most tokens in a batch: all batches together must fit into the memory."""
        most = limits.batch_tokens
        return most if self.tokens is None else max(1, min(most, self.tokens // limits.batches))

    def answer_tokens(self, limits: Limits, length: int, kept: int, asked: int | None) -> int:
        """The longest answer to a prompt, as the request asks for it or shorter; refuses a prompt without room for one.

        length, kept: tokens of the prompt, before and after compression
        """
        if limits.prompt_tokens is not None and kept > limits.prompt_tokens:
            raise _too_long(f"{kept:,} tokens after compression, more than {limits.prompt_tokens:,}")
        # Positions count as they were before compression: most methods keep those of the tokens that they keep.
        if self.positions is not None and length >= self.positions:
            raise _too_long(f"{length:,} tokens, more than the {self.positions:,} positions of the model allow")
        if self.tokens is not None and kept >= self.tokens:
            raise _too_long(f"{kept:,} tokens after compression, more than fit into the memory of the server")
        left = [
            limits.output_tokens,
            None if self.positions is None else self.positions - length,
            None if self.tokens is None else self.tokens - kept,
        ]
        return min([asked or limits.default_output_tokens, *(one for one in left if one is not None)])


def free_memory(device: torch.device) -> int | None:
    """Free bytes where the model computes; None if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found: Sequence[int | None] = (_available(), _left_to_group())
    return min((one for one in found if one is not None), default=None) if device.type == "cpu" else None


def _available() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _MEMORY.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None


def _left_to_group() -> int | None:
    """What the container may still take."""
    with suppress(OSError, ValueError):
        most, taken = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        return int(most) - int(taken)
    return None


def _too_long(problem: str) -> Refusal:
    return Refusal(400, "prompt_too_long", f"the prompt has {problem}", param="messages")
