"""The image of a visitor: the uploaded file itself, which the server decodes within its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr

Move = Callable[[Any], Awaitable[str | None]]


def uploaded_image(**options: Any) -> gr.Image:
    """Gradio's image component, whose handlers get the path of the uploaded file.

    Two methods are replaced on the instance, because Gradio writes a stub file next to a module that subclasses it.
    """
    image: Any = gr.Image(type="filepath", **options)
    image.preprocess = _path  # the original decodes the image, without our limits
    image.async_move_resource_to_block_cache = _only_files(image.async_move_resource_to_block_cache)
    return image


def _path(payload: Any) -> str | None:
    return None if payload is None else payload.path


def _only_files(move: Move) -> Move:
    """Refuse URLs: Gradio would fetch an image from an address in a crafted request."""

    async def move_file(place: Any) -> str | None:
        if "://" in str(place):
            raise gr.Error("images must be uploaded; URLs are not fetched")
        return await move(place)

    return move_file
