"""Messages in OpenAI's format, as turns for chat templates, with the URLs of their images and videos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from covist.errors import CovistError
from covist.request.prompts import Turn

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
Kind = Literal["image", "video"]
_TEXTS = ("text", "input_text")
_MEDIA: dict[str, tuple[str, Kind]] = {
    # The type of a part: its field with the URL, and what it shows. The second is that of the Responses API.
    "image_url": ("image_url", "image"),
    "input_image": ("image_url", "image"),
    "video_url": ("video_url", "video"),
}


@dataclass(frozen=True)
class Medium:
    """An image or a video of a message."""

    kind: Kind
    url: str


def read_messages(messages: Any) -> tuple[list[Turn], list[str]]:
    """Turns, and the URLs of their images in order; anything wrong raises a `CovistError` that names the place.

    >>> read_messages([{"role": "user", "content": "why ?"}])
    ([{'role': 'user', 'content': [{'type': 'text', 'text': 'why ?'}]}], [])
    """
    if not isinstance(messages, list) or not messages:
        raise CovistError("messages must be a list of messages")
    read = [read_message(message, f"messages.{index}") for index, message in enumerate(messages)]
    check_last([turn for turn, _ in read])
    if any("tool_calls" in turn or turn["role"] == "tool" for turn, _ in read):
        raise CovistError("messages: tools are not called here; leave their messages out")
    media = [medium for _, own in read for medium in own]
    if any(medium.kind == "video" for medium in media):
        raise CovistError("messages: videos are not read here; send frames as images")
    return [turn for turn, _ in read], [medium.url for medium in media]


def check_last(turns: list[Turn]) -> None:
    """Refuse a conversation in which it is not the model's turn."""
    if turns[-1]["role"] not in ("user", "tool"):
        raise CovistError("messages: the last message must be the user's")


def read_message(message: Any, place: str) -> tuple[Turn, list[Medium]]:
    """One message as a turn, and its images and videos."""
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise CovistError(f"{place}: a message needs a role ({', '.join(_ROLES)}) and content")
    calls = [_call(call, place) for call in message.get("tool_calls") or ()]
    content = message.get("content")
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if given is None and calls:
        given = []
    if not isinstance(given, list):
        raise CovistError(f"{place}: the content must be text or a list of parts")
    parts: list[dict[str, str]] = []
    media: list[Medium] = []
    for part in given:
        medium = _medium(part, place)
        media += [] if medium is None else [medium]
        parts.append({"type": "text", "text": part["text"]} if medium is None else {"type": medium.kind})
    role = _ROLES[message["role"]]
    if media and role != "user":
        raise CovistError(f"{place}: only user messages may contain images and videos")
    if not media and not calls and role != "tool" and not text_of(parts).strip():
        raise CovistError(f"{place}: the message is empty")
    return {"role": role, "content": parts, **({"tool_calls": calls} if calls else {})}, media


def text_of(parts: list[dict[str, str]]) -> str:
    """All text of a turn, joined as a template may join it."""
    return "".join(part.get("text", "") for part in parts)


def _medium(part: Any, place: str) -> Medium | None:
    """What a part shows; None for a part that is text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return None
    if kind in _MEDIA:
        field, shows = _MEDIA[kind]
        held = part.get(field)
        url = held.get("url") if isinstance(held, Mapping) else held
        if isinstance(url, str):
            return Medium(shows, url)
    raise CovistError(
        f'{place}: a part must be {{"type": "text", "text": ...}}, or an image_url or video_url with a url'
    )


def _call(call: Any, place: str) -> dict[str, Any]:
    """A call of a tool as templates read it: its arguments are an object."""
    try:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
    except (KeyError, TypeError):
        raise CovistError(f"{place}: a call of a tool needs a function with a name and arguments") from None
    with suppress(TypeError, ValueError):  # it stays as the model wrote it
        arguments = json.loads(arguments)
    return {"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}}
