"""A conversation as inputs of the model: through its chat template, and without special tokens from outside."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from covist.families.registry import family_for
from covist.request.inputs import Request
from covist.request.loading import LoadedModel
from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.schema import ImagePart, Message


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready for the model."""

    request: Request  # [1, n]
    visual_tokens: int  # places of the sequence that images take, before compression

    @property
    def length(self) -> int:
        """Tokens of the prompt, visual tokens before compression included."""
        return self.request.length

    def values(self, name: str) -> Tensor:
        """Token-level values [1, n]; zeros where a processor gives them only to prompts with images."""
        given = self.request.prompts
        return given[name] if name in given else torch.zeros_like(given["input_ids"])


class PromptMaker:
    """Turns messages into prompts."""

    def __init__(self, loaded: LoadedModel, limits: Limits):
        self._loaded, self._limits = loaded, limits
        self._processor = loaded.processor
        self._tokenizer = loaded.processor.tokenizer
        self._template: str | None = getattr(loaded.processor, "chat_template", None)
        self._family = family_for(loaded.model)
        self._special = _special_tokens(loaded.processor)
        self._busy = threading.Lock()  # tokenizers change their own settings while they work

    def check(self, messages: Sequence[Message]) -> list[str]:
        """Refuse what needs no image to be refused; returns the URLs of the images in order."""
        if len(messages) > self._limits.messages:
            raise _refusal("messages", f"more than {self._limits.messages} messages")
        characters = 0
        urls: list[str] = []
        for index, message in enumerate(messages):
            text, own = _text(message), _urls(message)
            if own and message.role != "user":
                raise _refusal(f"messages.{index}", "only messages of the user may hold images")
            if not text.strip() and not own:
                raise _refusal(f"messages.{index}", "the message is empty")
            characters, urls = characters + len(text), urls + own
            if characters > self._limits.prompt_characters:
                raise _refusal("messages", f"more than {self._limits.prompt_characters:,} characters of text")
            self._refuse_special(text, f"messages.{index}")
        if messages[-1].role != "user":
            raise _refusal("messages", "the last message must be the user's")
        if len(urls) > self._limits.images:
            raise _refusal("messages", f"more than {self._limits.images} images")
        return urls

    def make(self, messages: Sequence[Message], images: Sequence[Image.Image]) -> Prompt:
        """The prompt of checked messages, whose images have been read."""
        text = self._render(messages)
        with self._busy:
            try:
                shown = [list(images)] if images else None  # a list per prompt: OneVision tiles an image that is alone
                encoded = self._processor(images=shown, text=[text], return_tensors="pt")
            except ValueError as error:  # an extreme shape, for example
                raise Refusal(400, "bad_image", f"the processor refuses the request: {error}") from None
        request = Request.of_inputs({name: value for name, value in encoded.items() if isinstance(value, Tensor)})
        if request.length > self._limits.prompt_tokens:
            problem = f"the prompt has {request.length:,} tokens, more than {self._limits.prompt_tokens:,}"
            raise Refusal(400, "prompt_too_long", problem, param="messages")
        visual = int(self._family.image_mask(request.prompts["input_ids"], None).sum()) if images else 0
        return Prompt(request, visual)

    def collate(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Inputs of `generate` for a batch, padded on the left, on the model's device."""
        length = max(prompt.length for prompt in prompts)
        names = dict.fromkeys(name for prompt in prompts for name in prompt.request.prompts)
        inputs = {}
        for name in names:
            filling = self.pad_token if name == "input_ids" else 0
            rows = [_left(prompt.values(name), length, filling) for prompt in prompts]
            inputs[name] = torch.cat(rows)  # [batch, length]
        shown = [prompt.request.images for prompt in prompts if prompt.request.images]
        for name in shown[0] if shown else ():
            inputs[name] = _stacked([images[name] for images in shown])
        return {name: value.to(self._loaded.model.device) for name, value in inputs.items()}

    @property
    def pad_token(self) -> int:
        known = self._tokenizer.pad_token_id
        return int(self._tokenizer.eos_token_id or 0) if known is None else int(known)

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def _render(self, messages: Sequence[Message]) -> str:
        turns = [{"role": _role(message), "content": _content(message)} for message in messages]
        if self._template is None:
            return _plain_format(turns, self._processor.image_token)
        if "system" not in self._template:
            turns = _without_system(turns)
        return self._processor.apply_chat_template(turns, add_generation_prompt=True)

    def _refuse_special(self, text: str, place: str) -> None:
        """Text may not speak in special tokens: they would end turns, open others, or stand for images."""
        for token in self._special:
            if token in text:
                raise Refusal(400, "special_token", f"{place} contains {token!r}, a special token", param=place)
        with self._busy:
            found = set(self._tokenizer(text, add_special_tokens=False).input_ids)
        if special := found & {number for number in self._special.values() if number != self._tokenizer.unk_token_id}:
            named = self._tokenizer.convert_ids_to_tokens(min(special))
            raise Refusal(400, "special_token", f"{place} is read as {named!r}, a special token", param=place)


def _special_tokens(processor: Any) -> dict[str, int]:
    """Every token that means something to the model beyond its text, placeholders of images included."""
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


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


def _content(message: Message) -> list[dict[str, str]]:
    """The parts of a message as chat templates read them."""
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}]
    return [
        {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text}
        for part in message.content
    ]


def _text(message: Message) -> str:
    """All text of a message in one piece, as a template may join it."""
    return "".join(part.get("text", "") for part in _content(message))


def _urls(message: Message) -> list[str]:
    parts = [] if isinstance(message.content, str) else message.content
    return [part.image_url.url for part in parts if isinstance(part, ImagePart)]


def _without_system(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates that know no system: its text comes before that of the user's next message."""
    made: list[dict[str, Any]] = []
    held: list[dict[str, str]] = []
    for turn in turns:
        if turn["role"] == "system":
            held += [{**part, "text": part["text"] + "\n"} for part in turn["content"]]
        elif turn["role"] == "user":
            made.append({"role": "user", "content": [*held, *turn["content"]]})
            held = []
        else:
            made.append(turn)
    return made


def _plain_format(turns: list[dict[str, Any]], placeholder: str) -> str:
    """The format of LLaVA-1.5, for processors without a template (as `request/prompts.py` for one question)."""
    written = []
    for turn in _without_system(turns):
        parts = [f"{placeholder}\n" if part["type"] == "image" else part["text"] for part in turn["content"]]
        written.append(f"{turn['role'].upper()}: {''.join(parts)}")
    return " ".join([*written, "ASSISTANT:"])


def _left(values: Tensor, length: int, padding: int) -> Tensor:
    """Token-level values [1, n] padded on the left to [1, length]."""
    return torch.nn.functional.pad(values, (length - values.shape[1], 0), value=padding)


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """Values of all images in one tensor; where images have different numbers of tiles, zeros fill the gap."""
    widest = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
    padded = []
    for value in values:
        missing = [size for have, want in zip(value.shape[1:], widest, strict=True) for size in (want - have, 0)]
        padded.append(torch.nn.functional.pad(value, missing[::-1]))
    return torch.cat(padded)


def _refusal(place: str, problem: str) -> Refusal:
    return Refusal(400, "invalid_request", f"{place}: {problem}", param=place)
