"""A conversation as inputs of the model, through its chat template and without special tokens from clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from covist.budget import Budget
from covist.errors import CovistError
from covist.families.registry import family_for
from covist.request.batches import collate, pad_token
from covist.request.inputs import Request, prepare_conversation
from covist.request.loading import LoadedModel
from covist.request.messages import Medium, check_last, read_message, text_of
from covist.request.prompts import Tool, Turn, takes_tools
from covist.request.videos import Video
from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.schema import Message
from covist.units import counted


@dataclass(frozen=True)
class ChatPrompt:
    """One prompt, ready for the model."""

    request: Request  # [1, n]
    visual_tokens: int  # positions that images and videos take before compression
    kept_tokens: int  # tokens of the prompt after compression, by the budget

    @property
    def length(self) -> int:
        """Tokens of the prompt, with visual tokens before compression."""
        return self.request.length

    @property
    def token_ids(self) -> list[int]:
        return self.request.prompts["input_ids"][0].tolist()


class PromptMaker:
    """Turns messages into prompts."""

    def __init__(self, loaded: LoadedModel, limits: Limits):
        self._loaded, self._limits = loaded, limits
        self._tokenizer = loaded.processor.tokenizer
        self._family = family_for(loaded.model)
        self._special = _special_tokens(loaded.processor)
        self.busy = threading.Lock()  # tokenizers change their own settings while they work

    def check(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[Medium]:
        """Check what the schema cannot and what needs no images; returns images and videos in order."""
        turns = [self._turn(message, f"messages.{index}") for index, message in enumerate(messages)]
        texts = {f"messages.{index}": _all_text(turn) for index, (turn, _) in enumerate(turns)}
        if tools:
            texts["tools"] = json.dumps(tools, ensure_ascii=False)
        self.check_texts(texts, "messages")
        with _refusing("messages"):
            check_last([turn for turn, _ in turns])
        media = [medium for _, own in turns for medium in own]
        for kind, most in (("image", self._limits.images), ("video", self._limits.videos)):
            if sum(medium.kind == kind for medium in media) > most:
                raise _refusal("messages", f"more than {counted(most, kind)}")
        if tools or any("tool_calls" in turn or turn["role"] == "tool" for turn, _ in turns):
            self._require_tools()
        return media

    def check_texts(self, texts: Mapping[str, str], param: str) -> None:
        """Refuse texts of a client, by their places, that are too long together or contain special tokens."""
        if sum(map(len, texts.values())) > self._limits.prompt_characters:
            raise _refusal(param, f"more than {self._limits.prompt_characters:,} characters of text")
        for place, text in texts.items():
            self._refuse_special(text, place)

    def make(
        self,
        messages: Sequence[Message],
        shown: Sequence[Image.Image | Video],
        budget: Budget | None = None,
        tools: Sequence[Tool] = (),
        max_visual_tokens: int | None = None,
    ) -> ChatPrompt:
        """The prompt of checked messages, whose images and videos have been read; no budget leaves them as they are."""
        turns = [self._turn(message, f"messages.{index}")[0] for index, message in enumerate(messages)]
        videos = [one for one in shown if isinstance(one, Video)]
        images = [one for one in shown if not isinstance(one, Video)]
        with self.busy:
            try:
                request = prepare_conversation(self._loaded, turns, images, videos, tools)
            except CovistError as error:
                raise Refusal(400, "bad_image", str(error)) from None
        visual = int(self._family.image_mask(request.prompts["input_ids"], None).sum()) if shown else 0
        kept = _kept(visual, shown, budget)
        most = kept if max_visual_tokens is None else min(kept, max_visual_tokens)
        return ChatPrompt(request, visual, request.length - visual + most)

    def collate(self, prompts: Sequence[ChatPrompt]) -> dict[str, Tensor]:
        """Inputs of `generate` for a batch."""
        return collate([prompt.request for prompt in prompts], self.pad_token)

    @property
    def pad_token(self) -> int:
        return pad_token(self._tokenizer)

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def _turn(self, message: Message, place: str) -> tuple[Turn, list[Medium]]:
        with _refusing(place):
            return read_message(message.model_dump(), place)

    def _require_tools(self) -> None:
        if not takes_tools(self._loaded.processor):
            problem = 'the chat template of this model takes no tools; leave them out, or set tool_choice to "none"'
            raise _refusal("tools", problem)

    def _refuse_special(self, text: str, place: str) -> None:
        """Refuse special tokens in text: they would end turns, start new ones, or stand for images."""
        for token in self._special:
            if token in text:
                raise Refusal(400, "special_token", f"{place} contains {token!r}, a special token", param=place)
        with self.busy:
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


def _all_text(turn: Turn) -> str:
    """Everything of a turn that a client has written."""
    return text_of(turn["content"]) + (json.dumps(turn["tool_calls"]) if "tool_calls" in turn else "")


def _kept(visual: int, shown: Sequence[Image.Image | Video], budget: Budget | None) -> int:
    """About how many of the visual tokens are left, averaged over layers, if all images have equally many."""
    if budget is None or not shown:
        return visual
    frames = [len(one.frames) if isinstance(one, Video) else 1 for one in shown]
    return budget.sum_for([(visual * own // sum(frames), own) for own in frames])


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    try:
        yield
    except CovistError as error:
        raise Refusal(400, "invalid_request", str(error), param=place) from None


def _refusal(place: str, problem: str) -> Refusal:
    return Refusal(400, "invalid_request", f"{place}: {problem}", param=place)
