"""A conversation as inputs of the model, through its chat template and without special tokens from clients."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from covist.errors import CovistError
from covist.families.registry import family_for
from covist.request.batches import collate, pad_token
from covist.request.inputs import Request, prepare_conversation
from covist.request.loading import LoadedModel
from covist.request.messages import read_message, text_of
from covist.request.prompts import Turn
from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.schema import Message


@dataclass(frozen=True)
class ChatPrompt:
    """One prompt, ready for the model."""

    request: Request  # [1, n]
    visual_tokens: int  # positions that images take before compression

    @property
    def length(self) -> int:
        """Tokens of the prompt, with visual tokens before compression."""
        return self.request.length


class PromptMaker:
    """Turns messages into prompts."""

    def __init__(self, loaded: LoadedModel, limits: Limits):
        self._loaded, self._limits = loaded, limits
        self._tokenizer = loaded.processor.tokenizer
        self._family = family_for(loaded.model)
        self._special = _special_tokens(loaded.processor)
        self._busy = threading.Lock()  # tokenizers change their own settings while they work

    def check(self, messages: Sequence[Message]) -> list[str]:
        """Check what the schema cannot and what needs no images; returns the URLs of the images in order."""
        characters = 0
        urls: list[str] = []
        for index, message in enumerate(messages):
            turn, own = _turn(message, f"messages.{index}")
            text = text_of(turn["content"])
            characters, urls = characters + len(text), urls + own
            if characters > self._limits.prompt_characters:
                raise _refusal("messages", f"more than {self._limits.prompt_characters:,} characters of text")
            self._refuse_special(text, f"messages.{index}")
        if messages[-1].role != "user":
            raise _refusal("messages", "the last message must be the user's")
        if len(urls) > self._limits.images:
            raise _refusal("messages", f"more than {self._limits.images} images")
        return urls

    def make(self, messages: Sequence[Message], images: Sequence[Image.Image]) -> ChatPrompt:
        """The prompt of checked messages, whose images have been read."""
        turns = [_turn(message, f"messages.{index}")[0] for index, message in enumerate(messages)]
        with self._busy:
            try:
                request = prepare_conversation(self._loaded, turns, images)
            except CovistError as error:
                raise Refusal(400, "bad_image", str(error)) from None
        if request.length > self._limits.prompt_tokens:
            problem = f"the prompt has {request.length:,} tokens, more than {self._limits.prompt_tokens:,}"
            raise Refusal(400, "prompt_too_long", problem, param="messages")
        visual = int(self._family.image_mask(request.prompts["input_ids"], None).sum()) if images else 0
        return ChatPrompt(request, visual)

    def collate(self, prompts: Sequence[ChatPrompt]) -> dict[str, Tensor]:
        """Inputs of `generate` for a batch."""
        return collate([prompt.request for prompt in prompts], self.pad_token)

    @property
    def pad_token(self) -> int:
        return pad_token(self._tokenizer)

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def _refuse_special(self, text: str, place: str) -> None:
        """Refuse special tokens in text: they would end turns, start new ones, or stand for images."""
        for token in self._special:
            if token in text:
                raise Refusal(400, "special_token", f"{place} contains {token!r}, a special token", param=place)
        with self._busy:
            found = set(self._tokenizer(text, add_special_tokens=False).input_ids)
        if special := found & {number for number in self._special.values() if number != self._tokenizer.unk_token_id}:
            named = self._tokenizer.convert_ids_to_tokens(min(special))
            raise Refusal(400, "special_token", f"{place} is read as {named!r}, a special token", param=place)


def _special_tokens(processor: Any) -> dict[str, int]:
    """Every token with a special meaning to the model, including placeholders of images."""
    tokenizer = processor.tokenizer
    found = {str(entry): number for number, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    names = [
        *tokenizer.all_special_tokens,
        *(getattr(processor, name, None) for name in ("image_token", "video_token")),
    ]
    for name in names:
        if isinstance(name, str) and name:
            found[name] = tokenizer.convert_tokens_to_ids(name)
    return found


def _turn(message: Message, place: str) -> tuple[Turn, list[str]]:
    try:
        return read_message(message.model_dump(), place)
    except CovistError as error:
        raise Refusal(400, "invalid_request", str(error), param=place) from None


def _refusal(place: str, problem: str) -> Refusal:
    return Refusal(400, "invalid_request", f"{place}: {problem}", param=place)
