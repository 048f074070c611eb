"""What clients receive: OpenAI's objects with one more field, `covist`."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from covist.api.setup import Setup
from covist.serve.schema import ChatRequest
from covist.serve.sequence import Event, Finished, TokenChance, Written
from covist.serve.tools import CallReader, must_call, offered

LOWEST_LOGPROB = -9999.0
"""What OpenAI's service says of tokens without a chance."""


@dataclass
class ChatAnswer:
    """An answer of one or more choices while it is being generated."""

    model: str
    setup: Setup
    prompt_tokens: int
    choices: int
    arrived: float  # monotonic
    readers: list[CallReader] | None = None  # of each choice, if it may call tools
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time()))

    @classmethod
    def to(cls, wanted: ChatRequest, model: str, setup: Setup, prompt_tokens: int, arrived: float) -> ChatAnswer:
        """The answer to a request."""
        choices = wanted.n or 1
        readers = [CallReader(bool(must_call(wanted))) for _ in range(choices)] if offered(wanted) else None
        return cls(model, setup, prompt_tokens, choices, arrived, readers)

    def __post_init__(self) -> None:
        self._texts = [""] * self.choices
        self._calls: list[list[dict[str, Any]]] = [[] for _ in range(self.choices)]
        self._chances: list[list[dict[str, Any]] | None] = [None] * self.choices
        self._ends: dict[int, Finished] = {}

    @property
    def is_complete(self) -> bool:
        return len(self._ends) == self.choices

    def add(self, index: int, event: Event) -> dict[str, Any]:
        """Take an event of a choice; returns what it adds to the message."""
        reader = None if self.readers is None else self.readers[index]
        text = ""
        calls: list[dict[str, Any]] = []
        if isinstance(event, Written):
            text = event.text if reader is None else reader.add(event.text)
            if event.chances:
                self._chances[index] = [*(self._chances[index] or ()), *map(_chance, event.chances)]
        elif isinstance(event, Finished):
            text, calls = ("", []) if reader is None else reader.finish()
            self._ends[index] = event
        self._texts[index] += text
        self._calls[index] += calls
        delta: dict[str, Any] = {"content": text} if text or isinstance(event, Written) else {}
        if calls:
            delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
        return delta

    @property
    def usage(self) -> dict[str, int]:
        """Token counts as the client sees them: visual tokens before compression."""
        written = sum(end.tokens for end in self._ends.values())
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        }

    @property
    def extension(self) -> dict[str, Any]:
        """What compression did, from the first choice: all choices have the same prompt."""
        end = self._ends[0]
        return {
            "method": self.setup.method,
            "budget": self.setup.to_dict()["budget"],
            "visual_tokens": {"before": end.cost.visual_tokens, "after": end.cost.visual_tokens_kept},
            "certificates": list(end.cost.certificates),
            "cache_bytes": {"before": end.cost.cache_bytes_uncompressed, "after": end.cost.cache_bytes},
            "seconds": {
                "queue": end.waited,
                "first_token": end.first_token,
                "total": monotonic() - self.arrived,
            },
        }

    @property
    def figures(self) -> dict[str, Any]:
        """The figures for its line in the log."""
        shown = {name: self.extension[name] for name in ("method", "budget", "visual_tokens")}
        return {"id": self.id, **self.usage, **shown}

    @property
    def is_within_budget(self) -> bool:
        """Whether an image ran uncompressed because it has no more tokens than the budget."""
        images = () if self.setup.is_plain else self.first_end.cost.images
        return any(image.missed is None and image.budget >= image.tokens for image in images)

    @property
    def first_end(self) -> Finished:
        return self._ends[0]

    def completion(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": index,
                "message": self._message(index),
                "logprobs": _logprobs(self._chances[index]),
                "finish_reason": self._reason(index),
            }
            for index in range(self.choices)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage, "covist": self.extension}

    def opening(self) -> list[bytes]:
        """The first event of every choice in a stream."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.choices)]

    def event(self, index: int, event: Event) -> bytes:
        """Take an event of a choice; returns it as an event of the stream."""
        delta = self.add(index, event)
        if isinstance(event, Finished):
            own: dict[str, Any] = {"covist": self.extension} if self.is_complete else {}
            return self._chunk(index, delta, self._reason(index), **own)
        assert isinstance(event, Written), "failures are handled elsewhere"
        chances = [_chance(one) for one in event.chances] or None
        return self._chunk(index, delta, chances=chances)

    def closing(self, include_usage: bool) -> list[bytes]:
        """The last events of a stream."""
        usage = {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage, "covist": self.extension}
        return [*([sent_event(usage)] if include_usage else []), b"data: [DONE]\n\n"]

    def _message(self, index: int) -> dict[str, Any]:
        calls, text = self._calls[index], self._texts[index]
        said = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        return {**said, "tool_calls": calls} if calls else said

    def _reason(self, index: int) -> str:
        return "tool_calls" if self._calls[index] else self._ends[index].reason

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        chances: list[dict[str, Any]] | None = None,
        **own: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": _logprobs(chances), "finish_reason": reason}
        return sent_event({**self._head("chat.completion.chunk"), "choices": [choice], **own})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _logprobs(chances: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if chances is None else {"content": chances, "refusal": None}


def _chance(chance: TokenChance) -> dict[str, Any]:
    """The chances of a token in OpenAI's form."""
    likeliest = [_token(text, logprob) for text, logprob in chance.likeliest]
    return {**_token(chance.text, chance.logprob), "top_logprobs": likeliest}


def _token(text: str, logprob: float) -> dict[str, Any]:
    # JSON has no infinity, which is the logarithm of a token that the model rules out.
    return {"token": text, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(text.encode())}


def sent_event(values: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(values, separators=(",", ":")).encode() + b"\n\n"
