"""Requests: what a model is given, on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from covist.errors import CovistError
from covist.request.loading import LoadedModel
from covist.request.prompts import chat_prompt

_TEXT_INPUTS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


@dataclass(frozen=True)
class Request:
    """One or more prompts about the same images.

    prompts: what every prompt has of its own, [prompts, n] padded on the left.
    images: what the vision tower takes, once, however many prompts ask about it.
    """

    prompts: dict[str, Tensor]
    images: dict[str, Tensor]

    @classmethod
    def of_inputs(cls, inputs: dict[str, Tensor]) -> Request:
        """One prompt, from the inputs that a processor makes of it."""
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

    def inputs(self, model: Any) -> dict[str, Any]:
        """Arguments of the model's `generate`; several prompts share one encoding of their images."""
        if self.count == 1:
            return {**self.prompts, **self.images}
        encoded = model.get_image_features(**self.images, return_dict=True)
        features = encoded.pooler_output  # one tensor for all images, or one for each
        encoded.pooler_output = (
            torch.cat([features] * self.count) if isinstance(features, Tensor) else list(features) * self.count
        )
        repeated = {
            name: torch.cat([values] * self.count) for name, values in self.images.items() if name != "pixel_values"
        }
        return {**self.prompts, **repeated, "mm_encoder_outputs": {"image": encoded}}


def prepare(loaded: LoadedModel, images: Sequence[Image.Image], *prompts: str) -> Request:
    """One or more questions about the same images, ready for the model."""
    if not all(prompt.strip() for prompt in prompts):
        raise CovistError("the prompt is empty")
    if not images:
        raise CovistError("the prompt has no image: there is nothing to compress")
    texts = [chat_prompt(loaded.processor, prompt, len(images)) for prompt in prompts]
    try:
        single = _encode(loaded, images, texts[:1])
        every = _encode(loaded, [list(images)] * len(texts), texts) if len(texts) > 1 else single
    except ValueError as error:  # an extreme shape, for example
        raise CovistError(f"the processor of {loaded.name} refuses the image: {error}") from error
    return Request(Request.of_inputs(every).prompts, Request.of_inputs(single).images)


def _encode(loaded: LoadedModel, images: Sequence[Any], texts: list[str]) -> dict[str, Tensor]:
    padding: dict[str, Any] = {"padding": True, "padding_side": "left"} if len(texts) > 1 else {}
    encoded = loaded.processor(images=list(images), text=texts, return_tensors="pt", **padding)
    return dict(encoded.to(loaded.model.device))


def unknown_words(loaded: LoadedModel, prompt: str) -> list[str]:
    """Words of a prompt that the tokenizer has no token for (a small vocabulary has many)."""
    tokenizer = loaded.processor.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None:
        return []
    words = dict.fromkeys(prompt.split())
    return [word for word in words if unknown in tokenizer(word, add_special_tokens=False).input_ids]
