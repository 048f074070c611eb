"""What a task of lmms-eval shows and asks, as a conversation for the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from covist.errors import CovistError
from covist.request.conversations import Conversation
from covist.request.images import as_rgb, load_image
from covist.request.prompts import Turn
from covist.request.videos import Video, load_video

IMAGE_MARK = "<image>"
"""Marks the place of an image in the text of lmms-eval's simple tasks; many texts have no mark."""


def from_messages(messages: Sequence[dict[str, Any]], frames: int) -> Conversation:
    """The conversation of a chat task, whose turns come from `doc_to_messages`."""
    turns: list[Turn] = []
    images: list[Image.Image] = []
    videos: list[Video] = []
    for message in messages:
        parts = []
        for part in message["content"]:
            if part["type"] == "text":
                parts.append({"type": "text", "text": part["text"]})
            elif part["type"] == "image":
                images.append(_image(part["url"]))
                parts.append({"type": "image"})
            elif part["type"] == "video":
                videos.append(_video(part, frames))
                parts.append({"type": "video"})
            else:
                raise _not_shown(part["type"])
        turns.append({"role": message["role"], "content": parts})
    return Conversation(tuple(turns), tuple(images), tuple(videos))


def from_visuals(visuals: Sequence[Any] | None, text: str, frames: int) -> Conversation:
    """The conversation of a simple task: one turn with the visuals of `doc_to_visual` and a text.

    Visuals go to the places that the text marks, if it has as many marks as there are visuals, else before the text.
    """
    shown = [_visual_part(visual) for visual in visuals or ()]
    pieces = text.split(IMAGE_MARK)
    if shown and len(pieces) == len(shown) + 1:
        between = [{"type": "text", "text": piece} for piece in pieces]
        content = [between[0], *(part for pair in zip(shown, between[1:], strict=True) for part in pair)]
        content = [part for part in content if part.get("text") != ""]
    else:
        content = [*shown, {"type": "text", "text": "".join(pieces)}]
    return from_messages([{"role": "user", "content": content}], frames)


def _visual_part(visual: Any) -> dict[str, Any]:
    """lmms-eval distinguishes visuals only by their Python types."""
    if isinstance(visual, dict):
        raise _not_shown("audio")
    return {"type": "image" if isinstance(visual, Image.Image) else "video", "url": visual}


def _image(shown: Any) -> Image.Image:
    return as_rgb(shown) if isinstance(shown, Image.Image) else load_image(shown)


def _video(part: dict[str, Any], frames: int) -> Video:
    if part.get("start_time") is not None or part.get("end_time") is not None:
        raise CovistError("the task shows part of a video, but covist reads whole videos; cut it beforehand")
    shown = part["url"]
    return load_video(shown, frames) if isinstance(shown, str) else Video.of([as_rgb(frame) for frame in shown])


def _not_shown(kind: str) -> CovistError:
    return CovistError(f"the task shows {kind}, but covist takes only images and videos")
