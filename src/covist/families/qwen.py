"""What the Qwen-VL families have in common; everything that is read of them, the generic family reads."""

from __future__ import annotations

from covist.families.generic import Generic


class QwenFamily(Generic):
    """Any resolution, 2x2 patches per token, 3-D positions."""

    encoder_signal = "incoming attention of the last block"
    video_stand_in = "Qwen2Videos"
