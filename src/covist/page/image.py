"""The image of a visitor: the file as it was uploaded, which the server itself decodes within its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr

Move = Callable[[Any], Awaitable[str | None]]


def uploaded_image(**options: Any) -> gr.Image:
    """Gradio's image, whose handlers get the path of the file that was uploaded.

    Two of its methods are replaced on the instance: Gradio writes a stub file beside every module that derives one.
    """
    image: Any = gr.Image(type="filepath", **options)
    image.preprocess = _path  # the original decodes, without our limits
    image.async_move_resource_to_block_cache = _only_files(image.async_move_resource_to_block_cache)
    return image


def _path(payload: Any) -> str | None:
    return None if payload is None else payload.path


def _only_files(move: Move) -> Move:
    """Gradio would fetch an image from the address that a crafted request names."""

    async def move_file(place: Any) -> str | None:
        if "://" in str(place):
            raise gr.Error("images are uploaded, not fetched")
        return await move(place)

    return move_file
