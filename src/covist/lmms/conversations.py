"""What a task of lmms-eval shows and asks, as a conversation that a model of ours can be given."""

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
"""What lmms-eval's simple tasks write where an image belongs, if they say it at all."""


def from_messages(messages: Sequence[dict[str, Any]], frames: int) -> Conversation:
    """The conversation of a chat task: `doc_to_messages` gives its turns."""
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
    """The conversation of a simple task: one turn with what `doc_to_visual` gives, and a text about it.

    The images stand where the text marks their places, if it marks as many as there are, else before it.
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
    """lmms-eval tells visuals apart by their types alone."""
    if isinstance(visual, dict):
        raise _not_shown("audio")
    return {"type": "image" if isinstance(visual, Image.Image) else "video", "url": visual}


def _image(shown: Any) -> Image.Image:
    return as_rgb(shown) if isinstance(shown, Image.Image) else load_image(shown)


def _video(part: dict[str, Any], frames: int) -> Video:
    if part.get("start_time") is not None or part.get("end_time") is not None:
        raise CovistError("the task shows a part of a video; cut it out beforehand, covist reads whole videos")
    shown = part["url"]
    return load_video(shown, frames) if isinstance(shown, str) else Video.of([as_rgb(frame) for frame in shown])


def _not_shown(kind: str) -> CovistError:
    return CovistError(f"the task shows {kind}, which no model of covist takes; it takes images and videos")
