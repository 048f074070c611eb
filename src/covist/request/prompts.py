"""A question about images in a model's own chat format."""

from __future__ import annotations

from typing import Any

from covist.errors import CovistError

WITHOUT_TEMPLATE = "USER: {images}{question} ASSISTANT:"


def chat_prompt(processor: Any, question: str, images: int = 1) -> str:
    """The text that `processor` takes together with that many images."""
    placeholder = processor.image_token
    if placeholder in question:
        raise CovistError(f"the prompt contains {placeholder!r}; leave it out, images are put before the question")
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}] * images + [{"type": "text", "text": question}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return WITHOUT_TEMPLATE.format(images=f"{placeholder}\n" * images, question=question)
