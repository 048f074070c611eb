"""Families whose models take videos too, which are not compressed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from covist.contract.family import Family


class VideoPassesThrough(Family):
    """A call with a video runs as the plain model, with a warning that says so."""

    def passthrough_reason(self, input_ids: Tensor | None, kwargs: dict[str, Any]) -> str | None:
        has_video = kwargs.get("pixel_values_videos") is not None or self.encoded(kwargs).get("video") is not None
        if input_ids is not None and not has_video:
            has_video = bool((input_ids == self.model.config.video_token_id).any())
        return "video input is not compressed: this call runs as the plain model" if has_video else None
