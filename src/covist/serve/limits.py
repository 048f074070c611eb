"""Every limit of the server: each field is an option of `covist serve`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from covist.errors import CovistError

MIB = 2**20
_PARTS = {
    "bytes_at_once": "body_bytes",
    "request_pixels": "image_pixels",
    "pixels_at_once": "request_pixels",
}
"""Limits of a whole, which must be at least those of a part, or such a part would never be accepted."""


_BY_MODEL = "what the model's positions and the memory allow"


def _limit(default: Any, doc: str, low: float = 1, shown: bool | str = True) -> Any:
    """`shown` is what the help shows as the default, if it is not the value."""
    return field(default=default, metadata={"doc": doc, "low": low, "shown": shown})


@dataclass(frozen=True)
class Limits:
    """Limits of a single request, and of the whole server."""

    body_bytes: int = _limit(32 * MIB, "Largest request body, in bytes.")
    bytes_at_once: int = _limit(256 * MIB, "Most bytes of all bodies and fetched images at once; then 503.")
    body_seconds: float = _limit(30.0, "Longest time for the headers of a request, and for its body.", 0)
    image_bytes: int = _limit(20 * MIB, "Largest image or video file, in bytes.")
    image_pixels: int = _limit(64_000_000, "Largest image, as width times height.")
    request_pixels: int = _limit(100_000_000, "Most pixels of all images in a request.")
    pixels_at_once: int = _limit(100_000_000, "Most pixels that are decoded at once; further requests wait.")
    images: int = _limit(8, "Most images in a request.", 0)
    videos: int = _limit(1, "Most videos in a request.", 0)
    video_frames: int = _limit(16, "Frames that are taken from a video.")
    video_pixels: int = _limit(4_000_000_000, "Most pixels of all frames of a video, which are decoded one by one.")
    messages: int = _limit(64, "Most messages in a request.")
    prompt_characters: int = _limit(100_000, "Most characters in all messages of a request.")
    prompt_tokens: int | None = _limit(None, "Longest prompt in tokens, after compression.", shown=_BY_MODEL)
    output_tokens: int | None = _limit(None, "Longest answer in tokens; requests for more get less.", shown=_BY_MODEL)
    default_output_tokens: int = _limit(2048, "Longest answer if a request does not say, in tokens.")
    choices: int = _limit(4, "Most answers to one request (`n`).")
    queue: int = _limit(256, "Most answers that may wait; further ones are refused with 429.")
    queue_bytes: int = _limit(1024 * MIB, "Most bytes of prompts with their images that may wait; then 429.")
    request_seconds: float = _limit(120.0, "Longest time for a request after its body, including waiting.", 0)
    fetch_seconds: float = _limit(10.0, "Longest time to fetch an image, from the host's address to the last byte.", 0)
    batch_size: int = _limit(16, "Most answers in a batch.")
    batch_tokens: int = _limit(
        32_768, "Most tokens in a batch, after compression, with padding and answers; one answer always fits."
    )
    batch_milliseconds: float = _limit(10.0, "How long the first answer of a batch waits for others.", 0)
    batches: int = _limit(4, "Batches that take turns at the model, token by token.")
    streams: int = _limit(8, "Most streams (`/v1/stream`) at once; further ones are refused with 503.", 0)
    stream_tokens: int = _limit(1024, "Most visual tokens that are held of a stream, and the default.")
    stream_seconds: float = _limit(60.0, "How long the client of a stream may be silent; then it is closed.", 0)
    connections: int = _limit(1024, "Most open connections; further ones are refused with 503.")
    drain_seconds: float = _limit(60.0, "How long a shutdown (SIGTERM) waits for running requests.", 0)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, low = getattr(self, one.name), one.metadata["low"]
            if value is not None and not low <= value < float("inf"):
                raise CovistError(f"{_option(one.name)} must be at least {low:g}, got {value}")
        for whole, part in _PARTS.items():
            if getattr(self, whole) < getattr(self, part):
                raise CovistError(
                    f"{_option(whole)} must be at least {_option(part)}: {getattr(self, whole):,} is less than "
                    f"{getattr(self, part):,}"
                )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
