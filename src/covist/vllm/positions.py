"""The positions of a compressed prompt's tokens, before the rows of images add their own offsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

AXES = 3
"""vLLM stores three positions per token for models that define their own positions."""


@dataclass(frozen=True)
class Placed:
    """An image or video in a prompt: tokens [first, first + rows), which take `positions` positions.

    offsets: positions of the rows relative to the first one, [3, rows], if the rows do not carry them
    """

    first: int
    rows: int
    positions: int
    offsets: Tensor | None = None


def prompt_positions(length: int, placed: Iterable[Placed]) -> tuple[Tensor, int]:
    """Positions [3, length] of a prompt, and what to add to the index of a generated token to get its position.

    Every row of an image gets the image's first position; text continues after the positions that the image takes.
    """
    positions, place, position = torch.empty(AXES, length, dtype=torch.long), 0, 0
    for image in sorted(placed, key=lambda image: image.first):
        text = image.first - place
        positions[:, place : image.first] = torch.arange(position, position + text)
        position += text
        own = positions[:, image.first : image.first + image.rows]
        own[:] = position if image.offsets is None else position + image.offsets
        place, position = image.first + image.rows, position + image.positions
    positions[:, place:] = torch.arange(position, position + length - place)
    return positions, position + length - place - length
