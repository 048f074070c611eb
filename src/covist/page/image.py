"""The image of a visitor: the uploaded file itself, which the server decodes within its limits."""

from __future__ import annotations

from typing import Any

import gradio as gr

from covist.page.asking import as_sentence
from covist.page.uploads import Uploads
from covist.serve.errors import Refusal


def uploaded_image(uploads: Uploads, **options: Any) -> gr.Image:
    """Gradio's image component, whose handlers get the path of the uploaded file.

    Two methods are replaced on the instance, because Gradio writes a stub file next to a module that subclasses it.
    """
    image: Any = gr.Image(type="filepath", **options)
    image.preprocess = _path  # the original decodes the image, without our limits

    async def find(place: Any) -> str | None:
        """The original would fetch an image from an address, and copy a file from anywhere."""
        try:
            return None if place is None else str(uploads.find(place))
        except Refusal as refusal:
            raise gr.Error(as_sentence(refusal)) from None

    image.async_move_resource_to_block_cache = find
    return image


def _path(payload: Any) -> str | None:
    return None if payload is None else payload.path
