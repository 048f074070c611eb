"""Videos: a state for each segment of consecutive frames, as long as all pairs of its tokens can be compared."""

from __future__ import annotations

import math

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
