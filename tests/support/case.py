"""A family in the tests: one of its small models, its processor, and how it is asked. `matrix/` has the entries."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from PIL import Image

from support.families import smooth_image

SIZES = ((131, 170), (60, 300), (190, 95))
"""Width and height of the images in order; the families give them different numbers of tokens."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}BEFORE{% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% elif part['type'] == 'video' %}VIDEO{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% if message['role'] == 'user' %}AFTER{% endif %}{% endfor %}"
)


def no_markers(model: Any, inputs: Any) -> int:
    return 0


@dataclass(frozen=True)
class Case:
    """A family with one of its small models. Compression undoes itself, so one model serves a session."""

    name: str
    family: str
    model_class: str
    build: Callable[[], Any]
    processor: Callable[[], Any]
    image: str  # what stands for an image in a prompt
    turn: str  # one user turn, `{}` for what is asked
    slow: type
    markers: Callable[[Any, Any], int] = no_markers
    """(model, inputs) -> placeholders that are no content of an image, newlines for example."""

    @property
    def model(self) -> Any:
        return _built(self.build)

    @property
    def video(self) -> str | None:
        """What stands for a video in a prompt, if there can be one."""
        processor = self.processor()
        token = getattr(processor, "video_token", None)
        return None if token is None else self.image.replace(processor.image_token, token)

    def chatting_processor(self) -> Any:
        """A processor whose chat template writes turns as `turn` does."""
        processor = copy.copy(self.processor())
        before, after = self.turn.split("{}")
        template = CHAT_TEMPLATE.replace("BEFORE", before).replace("AFTER", after).replace("IMAGE", self.image)
        processor.chat_template = template.replace("VIDEO", self.video or "")
        return processor

    def encode(self, prompts: list[str], images: list[Image.Image]) -> Any:
        """Inputs of whole prompts; `{image}` stands for the next image."""
        texts = [text.replace("{image}", self.image) for text in prompts]
        return self.processor()(images=images or None, text=texts, padding=True, return_tensors="pt")

    def ask(self, *questions: str, images: tuple[int, ...] | None = None) -> Any:
        """Inputs of one turn each; `{image}` stands for the next of `images` (indices into SIZES)."""
        count = sum(question.count("{image}") for question in questions)
        chosen = range(count) if images is None else images
        prompts = [self.turn.replace("{}", question) for question in questions]
        return self.encode(prompts, [smooth_image(*SIZES[index], seed=index) for index in chosen])

    def tokens(self, inputs: Any) -> int:
        """Image tokens in the prompts, markers included."""
        return int((inputs["input_ids"] == self.model.config.image_token_id).sum())


@cache
def _built(build: Callable[[], Any]) -> Any:
    return build()
