"""Every limit of the server: one field is one option of `covist serve`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from covist.errors import CovistError

MIB = 2**20


def _limit(default: Any, doc: str, low: float = 1) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True)
class Limits:
    """What one client may ask for, and what the server does at once."""

    body_bytes: int = _limit(32 * MIB, "Largest body of a request.")
    body_seconds: float = _limit(30.0, "Longest time for the head of a request to arrive, and again for its body.", 0)
    image_bytes: int = _limit(10 * MIB, "Largest image file.")
    image_pixels: int = _limit(25_000_000, "Largest image, width times height, read from its header.")
    images: int = _limit(8, "Images in one request.", 0)
    messages: int = _limit(64, "Messages in one request.")
    prompt_characters: int = _limit(100_000, "Characters of all messages together.")
    prompt_tokens: int = _limit(8192, "Tokens of a prompt, visual tokens before compression included.")
    output_tokens: int = _limit(1024, "Longest answer that may be asked for.")
    default_output_tokens: int = _limit(128, "Longest answer where a request does not say.")
    choices: int = _limit(4, "Answers to one request (`n`).")
    queue: int = _limit(256, "Answers that may wait; more are refused with 429.")
    request_seconds: float = _limit(120.0, "Longest time for a request, waiting included.", 0)
    fetch_seconds: float = _limit(10.0, "Longest time to fetch an image from an allowed host.", 0)
    batch_size: int = _limit(16, "Answers in one batch.")
    batch_tokens: int = _limit(32_768, "Tokens of one batch, padding and answers included; one answer always runs.")
    batch_milliseconds: float = _limit(10.0, "How long the first of a batch waits for others.", 0)
    batches: int = _limit(4, "Batches that take turns, token by token.")
    connections: int = _limit(1024, "Open connections; more are refused with 503.")
    drain_seconds: float = _limit(60.0, "How long SIGTERM waits for running requests.", 0)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, low = getattr(self, one.name), one.metadata["low"]
            if not low <= value < float("inf"):
                raise CovistError(f"--{one.name.replace('_', '-')} must be at least {low:g}, got {value}")
