"""Qwen2.5-VL's processor for images alone, for machines without torchvision (which its video half insists on)."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2_5_VLProcessor

from covist.errors import CovistError


class ImageOnlyQwenProcessor(Qwen2_5_VLProcessor):
    """`Qwen2_5_VLProcessor` without videos; `from_pretrained` loads the image processor and the tokenizer only.

    transformers reads from the constructor's signature which parts a processor consists of, so leaving the video
    processor out of it is all there is to do.
    """

    video_processor = None

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template, **kwargs)

    def __call__(self, *args: Any, videos: Any = None, **kwargs: Any) -> Any:
        if videos is not None:
            raise CovistError("this processor handles images only; use Qwen2_5_VLProcessor with torchvision for videos")
        return super().__call__(*args, **kwargs)
