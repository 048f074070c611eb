"""LLaVA-NeXT-Video: small models of the real class with the real processor; images are those of LLaVA-NeXT."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import LlavaNextVideoConfig, LlavaNextVideoForConditionalGeneration, LlavaNextVideoProcessor

from covist.families.processors import image_only
from support.case import Case
from support.families import lively, tokenizer, vocabulary
from support.matrix.llava_next import PATCH, SlowLlavaNext, llava_next, llava_next_processor, newlines

VIDEO = "<video>"


def llava_next_video(layers: int = 4, seed: int = 0, **text: Any) -> LlavaNextVideoForConditionalGeneration:
    images = llava_next(layers, **text).config
    config = LlavaNextVideoConfig(
        vision_config=images.vision_config,
        text_config=images.text_config,
        image_token_index=images.image_token_index,
        video_token_index=vocabulary(VIDEO)[VIDEO],
        image_grid_pinpoints=images.image_grid_pinpoints,
    )
    torch.manual_seed(seed)
    return lively(LlavaNextVideoForConditionalGeneration(config).eval())


def llava_next_video_processor() -> Any:
    return image_only(LlavaNextVideoProcessor)(
        image_processor=llava_next_processor().image_processor,
        tokenizer=tokenizer(VIDEO),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


CASES = (
    Case(
        name="llava-next-video",
        family="llava-next-video",
        model_class="LlavaNextVideoForConditionalGeneration",
        build=partial(llava_next_video, layers=8),
        processor=llava_next_video_processor,
        image="<image>",
        turn="USER: {} ASSISTANT:",
        slow=SlowLlavaNext,
        markers=newlines,
    ),
)
