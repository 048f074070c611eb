"""The model behind the plugin: conversations in, answers and their visual tokens out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from covist.api.compress import compress
from covist.api.report import Report
from covist.lmms.arguments import Arguments
from covist.lmms.conversations import Conversation
from covist.lmms.generation import Generation
from covist.request.batches import collate, pad_token
from covist.request.concentration import REFERENCE_IMAGES, mean_concentration
from covist.request.loading import load_model
from covist.request.tokens import visual_tokens

SEARCHED = 1024
"""Documents of a task that are looked through for images that differ."""


@dataclass(frozen=True)
class Shown:
    """The visual tokens of some prompts, of all their images and videos together."""

    views: int = 0  # images, and frames of videos: what a budget counts tokens for
    tokens: float = 0  # before compression
    kept: float = 0  # in the cache after prefill, averaged over layers: what a budget counts
    prefill: float = 0  # during prefill, averaged over layers

    def __add__(self, other: Shown) -> Shown:
        return Shown(
            self.views + other.views, self.tokens + other.tokens, self.kept + other.kept, self.prefill + other.prefill
        )


@dataclass(frozen=True)
class Answered:
    """One answer, and what it took."""

    text: str
    new_tokens: int
    shown: Shown


class Answerer:
    """A loaded model that answers batches of conversations under one method and budget."""

    def __init__(self, arguments: Arguments, device: str = "auto"):
        self.loaded = load_model(
            arguments.pretrained, arguments.clip, device, arguments.dtype, arguments.attn_implementation
        )
        self._tokenizer = self.loaded.processor.tokenizer
        self._counts: dict[Any, Shown] = {}  # of uncompressed prompts, by the shapes of what they show
        self._method = None if arguments.is_plain else arguments.make_method()
        tracker = None if self._method is None else self._method.tracker
        self.needs_reference = tracker is not None and tracker.frozen is None and not arguments.is_running
        """Whether a task must settle a concentration reference before its first answer."""
        self._handle = None
        if self._method is not None:
            self._handle = compress(
                self.loaded.model,
                self.loaded.processor,
                budget=arguments.wanted_budget,
                method=self._method,
                min_coverage=arguments.least_coverage,
                clip=self.loaded.clip,
            )

    def settle(self, conversations: Iterable[Conversation]) -> float | None:
        """The mean concentration over the first conversations that show something new; None if none does."""
        new: dict[int, Conversation] = {}
        for conversation in islice(conversations, SEARCHED):
            if conversation.shows_something:
                new.setdefault(conversation.fingerprint, conversation)
            if len(new) == REFERENCE_IMAGES:
                break
        return mean_concentration(self.loaded, (one.request(self.loaded) for one in new.values())) if new else None

    def freeze(self, concentration: float | None) -> None:
        """Answer from now on with this concentration reference."""
        if self._method is not None and self._method.tracker is not None:
            self._method.tracker.freeze(concentration)

    @torch.no_grad()
    def answer(self, conversations: Sequence[Conversation], generation: Generation) -> list[Answered]:
        """Answers to a batch; with a frozen reference none of them depends on its neighbours."""
        requests = [conversation.request(self.loaded) for conversation in conversations]
        padding = pad_token(self._tokenizer)
        inputs = collate(requests, padding)
        written = self.loaded.model.generate(
            **inputs, **dict(generation.options), use_cache=True, pad_token_id=padding
        )[:, inputs["input_ids"].shape[1] :]  # [batch, new tokens]
        texts = self.loaded.processor.batch_decode(written, skip_special_tokens=True)
        return [
            Answered(generation.cut(text), _written(row, padding), shown)
            for text, row, shown in zip(texts, written, self._shown(conversations, generation.beams), strict=True)
        ]

    def _shown(self, conversations: Sequence[Conversation], beams: int) -> list[Shown]:
        if self._handle is None:
            return [self._counted(conversation) for conversation in conversations]
        report = self._handle.report if any(one.shows_something for one in conversations) else None
        return [_compressed(report, row * beams) for row in range(len(conversations))]

    def _counted(self, conversation: Conversation) -> Shown:
        """Uncompressed tokens; the vision tower is asked once for each combination of sizes."""
        if not conversation.shows_something:
            return Shown()
        if conversation.shapes not in self._counts:
            items = visual_tokens(self.loaded, conversation.request(self.loaded))
            tokens = sum(item.content for item in items)
            self._counts[conversation.shapes] = Shown(sum(item.frames for item in items), tokens, tokens, tokens)
        return self._counts[conversation.shapes]


def _compressed(report: Report | None, row: int) -> Shown:
    """What the report of a batch says about one of its rows; every beam of a prompt has one."""
    images = [] if report is None else [image for image in report.visuals if image.sample == row]
    return Shown(
        sum(image.frames for image in images),
        sum(image.tokens for image in images),
        sum(image.mean_cached_tokens for image in images),
        sum(image.mean_tokens for image in images),
    )


def _written(row: Tensor, padding: int) -> int:
    """Tokens of an answer without the filling after it."""
    return int((row != padding).sum())
