"""LLaVA-NeXT-Video: LLaVA-NeXT for images."""

from __future__ import annotations

from covist.families.llava_next import LlavaNext
from covist.families.registry import register_family
from covist.families.video import VideoPassesThrough


@register_family
class LlavaNextVideo(VideoPassesThrough, LlavaNext):
    name = "llava-next-video"
    model_classes = ("LlavaNextVideoForConditionalGeneration",)
