"""LLaVA-NeXT-Video: LLaVA-NeXT for images."""

from __future__ import annotations

from typing import Any

from covist.contract.profile import FIRST_SPECIAL
from covist.families.clip_tower import CLIP_SIDE
from covist.families.llava_next import LlavaNext
from covist.families.registry import register_family
from covist.families.video import VideoPassesThrough
from covist.plan import Geometry


@register_family
class LlavaNextVideo(VideoPassesThrough, LlavaNext):
    name = "llava-next-video"
    model_classes = ("LlavaNextVideoForConditionalGeneration",)
    processor = "LlavaNextVideoProcessor"
    presets = (  # an image of 672 x 672 pixels
        Geometry("llava-next-video-7b", 32, 4096, 11008, 32, 32, 2880, markers=48, budgets=(640, 320, 160), tiles=5),
    )

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        from transformers import LlavaNextVideoConfig

        return LlavaNextVideoConfig(
            vision_config=tower,
            text_config={"model_type": "llama", **text},
            image_token_index=FIRST_SPECIAL,
            video_token_index=FIRST_SPECIAL + 1,
            image_grid_pinpoints=[[2 * CLIP_SIDE, 2 * CLIP_SIDE]],
        )
