"""The model under evaluation: it answers all questions about an image in one batch."""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Any

from torch import nn

from covist.errors import CovistError
from covist.eval.suite import Item, Suite
from covist.request.concentration import REFERENCE_IMAGES, mean_concentration
from covist.request.inputs import Request, prepare
from covist.request.loading import LoadedModel, load_model
from covist.request.timing import generate
from covist.request.tokens import mean_content, visual_tokens

_PROBED_VALUES = 4096  # values of each parameter that a fingerprint reads


class Subject:
    """A loaded model that remembers the prepared requests of every item."""

    def __init__(self, loaded: LoadedModel):
        self.loaded = loaded
        self._requests: dict[int, Request] = {}

    @classmethod
    def resolve(cls, model: Any) -> Subject:
        """From a name ("tiny", a folder, a hub id), a `LoadedModel` or a tuple (model, processor[, clip])."""
        if isinstance(model, str):
            model = load_model(model)
        if isinstance(model, LoadedModel):
            return cls(model)
        if isinstance(model, tuple) and len(model) in (2, 3):
            return cls(LoadedModel("own model", *model))
        raise CovistError(f"model={type(model).__name__}: give a name or a tuple (model, processor, clip)")

    @property
    def model(self) -> Any:
        return self.loaded.model

    @cached_property
    def identity(self) -> dict[str, str]:
        """What answers hang on besides methods and budgets, by name."""
        clip = self.loaded.clip
        return {
            "model": _fingerprint(self.model),
            "clip": _fingerprint(clip[0]) if isinstance(clip, tuple) else str(clip or "none"),
            "dtype": self.loaded.dtype,
            "attention": self.loaded.attention,
        }

    def request(self, item: Item) -> Request:
        """All questions about an item."""
        if item.number not in self._requests:
            questions = [question.question for question in item.questions]
            self._requests[item.number] = prepare(self.loaded, [item.image], *questions)
        return self._requests[item.number]

    def answer(self, item: Item) -> list[str]:
        """Greedy answers to every question about an item."""
        written = generate(self.model, self.request(item), self._answer_tokens(item))
        return self.loaded.processor.batch_decode(written, skip_special_tokens=True)

    def tokens(self, item: Item) -> float:
        """Visual tokens of an item without compression."""
        return mean_content(visual_tokens(self.loaded, self.request(item)))

    def concentration(self, suite: Suite) -> float:
        """Mean concentration of the encoder attention over the first images of a suite.

        CoViST's running reference is frozen to it, so that an answer does not depend on the images before.
        """
        return mean_concentration(self.loaded, map(self.request, suite.items(REFERENCE_IMAGES)))

    def _answer_tokens(self, item: Item) -> int:
        """Room for the longest right answer and the end token."""
        tokenizer = getattr(self.loaded.processor, "tokenizer", self.loaded.processor)
        answers = [question.answer for question in item.questions]
        return max(map(len, tokenizer(answers, add_special_tokens=False).input_ids)) + 1


def _fingerprint(module: nn.Module) -> str:
    """Changes with the weights."""
    checksum = 0
    for name, values in module.state_dict().items():
        probe = values.flatten()[:_PROBED_VALUES].float().cpu().numpy()
        checksum = zlib.crc32(name.encode() + probe.tobytes(), checksum)
    return f"{type(module).__name__}-{checksum:08x}"
