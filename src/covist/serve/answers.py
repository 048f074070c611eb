"""What clients receive: OpenAI's objects with one more field, `covist`."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from covist.api.setup import Setup
from covist.serve.sequence import Event, Finished, Written


@dataclass
class ChatAnswer:
    """An answer of one or more choices while it is being generated."""

    model: str
    setup: Setup
    prompt_tokens: int
    choices: int
    arrived: float  # monotonic
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self._texts = [""] * self.choices
        self._ends: dict[int, Finished] = {}

    @property
    def is_complete(self) -> bool:
        return len(self._ends) == self.choices

    def add(self, index: int, event: Event) -> None:
        if isinstance(event, Written):
            self._texts[index] += event.text
        elif isinstance(event, Finished):
            self._ends[index] = event

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
    def first_end(self) -> Finished:
        return self._ends[0]

    def completion(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": self._ends[index].reason,
            }
            for index, text in enumerate(self._texts)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage, "covist": self.extension}

    def opening(self) -> list[bytes]:
        """The first event of every choice in a stream."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.choices)]

    def event(self, index: int, event: Event) -> bytes:
        """An event of a choice, as an event of the stream; call it after `add`."""
        if isinstance(event, Finished):
            own = {"covist": self.extension} if self.is_complete else {}
            return self._chunk(index, {}, event.reason, **own)
        assert isinstance(event, Written), "failures are handled elsewhere"
        return self._chunk(index, {"content": event.text})

    def closing(self, include_usage: bool) -> list[bytes]:
        """The last events of a stream."""
        usage = {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage, "covist": self.extension}
        return [*([sent_event(usage)] if include_usage else []), b"data: [DONE]\n\n"]

    def _chunk(self, index: int, delta: dict[str, str], reason: str | None = None, **own: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return sent_event({**self._head("chat.completion.chunk"), "choices": [choice], **own})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def sent_event(values: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(values, separators=(",", ":")).encode() + b"\n\n"
