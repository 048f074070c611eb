"""Videos: a state for each segment of consecutive frames, as long as all pairs of its tokens can be compared."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from covist.contract.family import Family

SEGMENT_TOKENS = 4096
"""Most tokens of a segment, if more than one frame is in it."""


def segments(frames: int, tokens: int) -> list[range]:
    """Consecutive frames that form a segment each, for frames of `tokens` tokens; segments are of about one length.

    >>> segments(frames=20, tokens=600)
    [range(0, 5), range(5, 10), range(10, 15), range(15, 20)]
    """
    count = math.ceil(frames / max(1, SEGMENT_TOKENS // tokens))
    ends = [frames * number // count for number in range(count + 1)]
    return [range(start, end) for start, end in zip(ends, ends[1:], strict=False)]


class VideoPassesThrough(Family):
    """A family whose models take videos, which it does not compress: such a call runs as the plain model."""

    video = "runs uncompressed"

    def passthrough_reason(self, input_ids: Tensor | None, kwargs: dict[str, Any]) -> str | None:
        has_video = kwargs.get("pixel_values_videos") is not None or self.encoded(kwargs).get("video") is not None
        if input_ids is not None and not has_video:
            has_video = bool((input_ids == self.model.config.video_token_id).any())
        return "video input is not compressed: this call runs as the plain model" if has_video else None
