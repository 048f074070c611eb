"""Videos: one state per segment of consecutive frames, short enough to compare all pairs of its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from covist.contract.signals import ImageSignals
from covist.grid import Grid

SEGMENT_TOKENS = 4096
"""Most tokens of a segment that has more than one frame."""


def segments(frames: int, tokens: int) -> list[range]:
    """Split frames of `tokens` tokens each into segments of consecutive frames of about equal length.

    >>> segments(frames=20, tokens=600)
    [range(0, 5), range(5, 10), range(10, 15), range(15, 20)]
    """
    count = math.ceil(frames / max(1, SEGMENT_TOKENS // tokens))
    ends = [frames * number // count for number in range(count + 1)]
    return [range(start, end) for start, end in zip(ends, ends[1:], strict=False)]


def film(
    span: Tensor, shape: tuple[int, int], frames: int, part_of: Callable[[range], dict[str, Any]]
) -> Iterator[ImageSignals]:
    """Signals of the segments of one video, which has `frames` frames of rows x columns tokens.

    span: the video's embeddings as the prompt receives them; any after the last frame are markers.
    part_of: returns the `ImageSignals` fields that the encoder gives for some frames.
    """
    tokens = shape[0] * shape[1]
    for part in segments(frames, tokens):
        end = None if part.stop == frames else part.stop * tokens
        rows = span[part.start * tokens : end]
        content = torch.arange(len(rows)) < len(part) * tokens
        yield ImageSignals(
            grid=Grid((shape,) * len(part), "frames"),
            span=rows.detach(),
            content=content,
            pack=torch.arange(len(part) * tokens, device=rows.device),
            continues=part.start > 0,
            **part_of(part),
        )
