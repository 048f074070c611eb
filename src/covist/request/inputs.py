"""Requests: the inputs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from covist.engine.capture import execution_device
from covist.errors import CovistError
from covist.families.registry import families, family_for
from covist.request.loading import LoadedModel
from covist.request.prompts import Tool, Turn, chat_prompt, conversation_prompt
from covist.request.videos import Video

_TEXT_INPUTS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
_PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
_POSITION_INPUTS = ("second_per_grid_ts",)
"""Inputs about the positions of visual tokens, which the vision tower does not take."""


@dataclass(frozen=True)
class Request:
    """One or more prompts about the same images and videos.

    prompts: the inputs of each prompt, [prompts, n] padded on the left
    images: the vision tower's inputs for images and videos, once for all prompts
    """

    prompts: dict[str, Tensor]
    images: dict[str, Tensor]

    @classmethod
    def of_inputs(cls, inputs: dict[str, Tensor]) -> Request:
        """One prompt, from the output of a processor."""
        prompts = {name: values for name, values in inputs.items() if name in _TEXT_INPUTS}
        return cls(prompts, {name: values for name, values in inputs.items() if name not in _TEXT_INPUTS})

    @property
    def count(self) -> int:
        """Number of prompts."""
        return self.prompts["input_ids"].shape[0]

    @property
    def length(self) -> int:
        """Tokens of a prompt, uncompressed, padding included."""
        return self.prompts["input_ids"].shape[1]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return sum(values.nbytes for part in (self.prompts, self.images) for values in part.values())

    def to(self, device: torch.device) -> Request:
        return Request(
            {name: values.to(device) for name, values in self.prompts.items()},
            {name: values.to(device) for name, values in self.images.items()},
        )

    @torch.no_grad()
    def inputs(self, model: Any) -> dict[str, Any]:
        """Arguments of the model's `generate`; several prompts share one encoding of their images and videos."""
        if self.count == 1:
            return {**self.prompts, **self.images}
        encoded = self.encode(model)
        for features in encoded.values():
            features.pooler_output = _repeated(features.pooler_output, self.count)
            if getattr(features, "deepstack_features", None) is not None:
                levels = features.deepstack_features
                features.deepstack_features = [_repeated(level, self.count) for level in levels]
        return self.bringing(encoded)

    def bringing(self, encoded: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the model's `generate` with features in place of pixels, as `encode` returns them."""
        repeated = {
            name: torch.cat([values] * self.count)
            for name, values in self.images.items()
            if name not in _PIXELS.values()
        }
        return {**self.prompts, **repeated, "mm_encoder_outputs": encoded}

    def encode(self, model: Any) -> dict[str, Any]:
        """The vision tower's features of images and videos, under "image" and "video"."""
        encoded = {}
        for kind, pixels in _PIXELS.items():
            if pixels in self.images:
                own = {
                    name: values
                    for name, values in self.images.items()
                    if name not in _POSITION_INPUTS and ("video" in name) == (kind == "video")
                }
                encoded[kind] = getattr(model, f"get_{kind}_features")(**own, return_dict=True)
        return encoded


def _repeated(features: Any, count: int) -> Any:
    """The features of all images, repeated for each prompt."""
    return torch.cat([features] * count) if isinstance(features, Tensor) else list(features) * count


def prepare(loaded: LoadedModel, images: Sequence[Image.Image], *prompts: str, videos: Sequence[Video] = ()) -> Request:
    """One or more questions about the same images and videos, ready for the model; images come before videos."""
    if not all(prompt.strip() for prompt in prompts):
        raise CovistError("the prompt is empty")
    if not images and not videos:
        raise CovistError("the prompt has no image: there is nothing to compress")
    if videos:
        require_videos(loaded)
    texts = [chat_prompt(loaded.processor, prompt, len(images), len(videos)) for prompt in prompts]
    single = _encode(loaded, images, videos, texts[:1])
    every = _encode(loaded, images, videos, texts) if len(texts) > 1 else single
    return Request(Request.of_inputs(every).prompts, Request.of_inputs(single).images).to(
        execution_device(loaded.model)
    )


def prepare_conversation(
    loaded: LoadedModel,
    turns: Sequence[Turn],
    images: Sequence[Image.Image] = (),
    videos: Sequence[Video] = (),
    tools: Sequence[Tool] = (),
) -> Request:
    """A conversation, ready for the model but not on its device; images and videos in the order of its turns."""
    if videos:
        require_videos(loaded)
    text = conversation_prompt(loaded.processor, turns, tools)
    return Request.of_inputs(_encode(loaded, images, videos, [text]))


def require_videos(loaded: LoadedModel) -> None:
    """Refuse a model that takes no videos."""
    family = family_for(loaded.model)
    if not family.takes_videos():
        able = ", ".join(other.name for other in families() if other.takes_videos())
        raise CovistError(f"{loaded.name} ({family.name}) takes no videos; these families do: {able}")


def _encode(
    loaded: LoadedModel, images: Sequence[Image.Image], videos: Sequence[Video], texts: list[str]
) -> dict[str, Tensor]:
    """The processor's output for prompts about the same images and videos."""
    count = len(texts)
    options: dict[str, Any] = {"padding": True, "padding_side": "left"} if count > 1 else {}
    if images:
        options["images"] = [list(images)] * count  # a list per prompt: OneVision tiles only a single image
    if videos:
        options["videos"] = [list(video.frames) for video in videos] * count
        options["video_metadata"] = [video.metadata for video in videos] * count
        options["do_sample_frames"] = False  # the frames have been chosen
    try:
        encoded = loaded.processor(text=texts, return_tensors="pt", **options)
    except ValueError as error:  # an extreme shape, for example
        what = "video" if not images else "image" if not videos else "image or video"
        raise CovistError(f"the processor of {loaded.name} refuses the {what}: {error}") from error
    return {name: values for name, values in encoded.items() if isinstance(values, Tensor)}


def unknown_words(loaded: LoadedModel, prompt: str) -> list[str]:
    """Words of a prompt that are not in the tokenizer's vocabulary, which may be small."""
    tokenizer = loaded.processor.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None:
        return []
    words = dict.fromkeys(prompt.split())
    return [word for word in words if unknown in tokenizer(word, add_special_tokens=False).input_ids]
