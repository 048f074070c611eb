"""What the user asked about an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Instruction:
    """The instruction that belongs to an image.

    `rows` are its prompt tokens, on the host; `last` is the last of them, or the last prompt token if there are none.
    `text` and `embeddings` are those of an explicit instruction, if one was given to replace the prompt's.
    """

    rows: Tensor  # [I] prompt rows
    last: int
    text: str
    read_embeddings: Callable[[], Tensor]  # -> [J, d]
    read_pieces: Callable[[], list[str]] = list

    @cached_property
    def embeddings(self) -> Tensor:
        """Decoder input embeddings of its J tokens, [J, d]."""
        return self.read_embeddings()

    @cached_property
    def pieces(self) -> list[str]:
        """The text that each of the J tokens adds; empty strings if it is unknown."""
        return self.read_pieces() or [""] * len(self.embeddings)


class TextSpace(Protocol):
    """CLIP's text space, in which instruction and patches can be compared."""

    def encode(self, text: str) -> Tensor:
        """Projected token features [T, p], BOS dropped and EOS last."""

    def encode_segments(self, text: str) -> Tensor:
        """Projected pooled features [M, p] of a text of any length, one for each part that fits."""

    def encode_padded(self, text: str) -> Tensor:
        """Projected features of every context position, padding included, for the same parts [M, context, p]."""

    def project_patches(self, features: Tensor) -> Tensor:
        """Patch features [N, v] in the text space [N, p]."""
