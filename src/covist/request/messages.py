"""Messages in OpenAI's format, as turns for chat templates, with the URLs of their images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covist.errors import CovistError
from covist.request.prompts import Turn

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read_messages(messages: Any) -> tuple[list[Turn], list[str]]:
    """Turns, and the URLs of their images in order; anything wrong raises a `CovistError` that names the place.

    >>> read_messages([{"role": "user", "content": "why ?"}])
    ([{'role': 'user', 'content': [{'type': 'text', 'text': 'why ?'}]}], [])
    """
    if not isinstance(messages, list) or not messages:
        raise CovistError("messages must be a list of messages")
    read = [read_message(message, f"messages.{index}") for index, message in enumerate(messages)]
    if read[-1][0]["role"] != "user":
        raise CovistError("messages: the last message must be the user's")
    return [turn for turn, _ in read], [url for _, urls in read for url in urls]


def read_message(message: Any, place: str) -> tuple[Turn, list[str]]:
    """One message as a turn, and the URLs of its images."""
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise CovistError(f"{place}: a message needs a role ({', '.join(_ROLES)}) and content")
    content = message.get("content")
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(given, list):
        raise CovistError(f"{place}: the content must be text or a list of parts")
    parts, urls = [], []
    for part in given:
        url = _url(part, place)
        urls += [] if url is None else [url]
        parts.append({"type": "text", "text": part["text"]} if url is None else {"type": "image"})
    if urls and message["role"] != "user":
        raise CovistError(f"{place}: only user messages may contain images")
    if not urls and not text_of(parts).strip():
        raise CovistError(f"{place}: the message is empty")
    return {"role": _ROLES[message["role"]], "content": parts}, urls


def text_of(parts: list[dict[str, str]]) -> str:
    """All text of a turn, joined as a template may join it."""
    return "".join(part.get("text", "") for part in parts)


def _url(part: Any, place: str) -> str | None:
    """The URL of a part that is an image; None for a part that is text."""
    if isinstance(part, Mapping):
        kind, held = part.get("type"), part.get("image_url")
        if kind == "text" and isinstance(part.get("text"), str):
            return None
        if kind == "image_url" and isinstance(held, Mapping) and isinstance(held.get("url"), str):
            return held["url"]
    raise CovistError(f'{place}: a part must be {{"type": "text", "text": ...}} or an image_url with a url')
