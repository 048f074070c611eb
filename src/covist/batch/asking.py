"""Load what a row asks: its images, from paths or bytes, and its text as the turns of a conversation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from PIL import Image

from covist.batch.rows import Row, may_be_base64
from covist.errors import CovistError
from covist.request.conversations import Conversation
from covist.request.data_urls import DECODED, decode_base64, image_data, is_data_url
from covist.request.images import decode_image, load_image, refuse_url
from covist.request.messages import read_messages, text_of
from covist.request.prompts import refuse_placeholders


def conversation_of(row: Row, prompt: str | None, processor: Any) -> Conversation:
    """The conversation of a row; anything wrong with it raises a `CovistError` of one line.

    prompt: the question for rows that have none
    """
    content = row.content
    if "messages" in content:
        if others := [name for name in ("image", "images", "prompt") if name in content]:
            raise CovistError(f"both messages and {others[0]}: give one of them")
        turns, shown = read_messages(content["messages"])
    else:
        shown = _shown(content)
        places = [{"type": "image"} for _ in shown]
        turns = [{"role": "user", "content": [*places, {"type": "text", "text": _prompt(content, prompt)}]}]
    for turn in turns:
        refuse_placeholders(processor, text_of(turn["content"]))
    images = [read_image(image, row.folder, f"image {number}") for number, image in enumerate(shown, 1)]
    return Conversation(tuple(turns), tuple(images))


def _shown(content: dict[str, Any]) -> list[Any]:
    if "image" in content and "images" in content:
        raise CovistError("both image and images: give one of them")
    if not isinstance(content.get("images", []), list):
        raise CovistError("images must be a list; give a single image as image")
    shown = content["images"] if "images" in content else [content[name] for name in ("image",) if name in content]
    if not shown:
        raise CovistError("no image, images or messages: there is nothing to ask about")
    return shown


def _prompt(content: dict[str, Any], given: str | None) -> str:
    prompt = content.get("prompt", given)
    if prompt is None:
        raise CovistError("no prompt or question; --prompt gives one to rows that have none")
    if not isinstance(prompt, str):
        raise CovistError("prompt must be text")
    if not prompt.strip():
        raise CovistError("the prompt is empty")
    return prompt


def read_image(given: Any, folder: Path, place: str) -> Image.Image:
    """An image from a path, a data URL, base64, bytes, or a struct of bytes and path as Hugging Face stores it."""
    if isinstance(given, dict):
        held = [given[name] for name in ("bytes", "path") if given.get(name) is not None]
        given = held[0] if held else None
    if isinstance(given, bytes):
        return decode_image(given, place)
    if not isinstance(given, str) or not given:
        raise CovistError(f"{place} must be a path, base64 or a data URL")
    if is_data_url(given):
        return decode_image(decode_base64(image_data(given, place), place), place, formats=DECODED)
    if _is_base64(given, folder):
        return decode_image(decode_base64("".join(given.split()), place), place)
    return _from_file(given, folder)


def _is_base64(given: str, folder: Path) -> bool:
    """Whether a text is base64 and not a path: no file has this name."""
    return may_be_base64(given) and not os.path.exists(folder / given)


def _from_file(name: str, folder: Path) -> Image.Image:
    if not os.path.exists(folder / name):
        refuse_url(name)
    return load_image(folder / name)
