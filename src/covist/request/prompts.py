"""A question about images and videos in a model's own chat format."""

from __future__ import annotations

from typing import Any

from covist.errors import CovistError

WITHOUT_TEMPLATE = "USER: {shown}{question} ASSISTANT:"


def chat_prompt(processor: Any, question: str, images: int = 1, videos: int = 0) -> str:
    """The text that `processor` takes together with that many images, and with that many videos after them."""
    placeholders = [token for kind in ("image", "video") if (token := getattr(processor, f"{kind}_token", None))]
    for placeholder in placeholders:
        if placeholder in question:
            raise CovistError(f"the prompt contains {placeholder!r}; leave it out, images are put before the question")
    shown = ["image"] * images + ["video"] * videos
    if getattr(processor, "chat_template", None):
        content = [*({"type": kind} for kind in shown), {"type": "text", "text": question}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    tokens = [getattr(processor, f"{kind}_token") for kind in shown]
    return WITHOUT_TEMPLATE.format(shown="".join(f"{token}\n" for token in tokens), question=question)
