"""The model under evaluation: it answers all questions about an image in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL import Image

from covist.errors import CovistError
from covist.eval.questions import posed
from covist.eval.suite import Item, Suite, load_suite
from covist.request.batches import end_tokens, until_end
from covist.request.concentration import REFERENCE_IMAGES, mean_concentration
from covist.request.decoding import generate
from covist.request.identity import identity
from covist.request.inputs import Request, prepare
from covist.request.loading import LoadedModel, load_model
from covist.request.tokens import mean_content, visual_tokens
from covist.request.videos import Video

LARGEST_BATCH = 16  # questions in one batch
KEPT_BYTES = 2**30  # of prepared requests; beyond this they are prepared again each time


@dataclass(frozen=True)
class ItemAnswers:
    """The greedy answers to the questions about an item."""

    texts: list[str]
    tokens: list[list[int]]  # of each answer, end token included
    losses: list[list[float | None]] | None = None  # of the words of given texts, where these are scored


class Subject:
    """A loaded model that remembers the prepared requests of items.

    max_new_tokens: the longest answer; by default that of the longest right one and the end token
    """

    reference_half: str | None = None
    """The half of a suite on which references are measured; None means both."""

    def __init__(self, loaded: LoadedModel, max_new_tokens: int | None = None):
        self.loaded, self._max_new_tokens = loaded, max_new_tokens
        self._requests: dict[int, list[Request]] = {}
        self._kept_bytes = 0

    @classmethod
    def resolve(cls, model: Any, max_new_tokens: int | None = None) -> Subject:
        """From a name ("tiny", a folder, a hub id), a `LoadedModel` or a tuple (model, processor[, clip])."""
        if isinstance(model, str):
            model = load_model(model)
        if isinstance(model, LoadedModel):
            return cls(model, max_new_tokens)
        if isinstance(model, tuple) and len(model) in (2, 3):
            return cls(LoadedModel("own model", *model), max_new_tokens)
        raise CovistError(f"model={type(model).__name__}: give a name or a tuple (model, processor, clip)")

    @property
    def model(self) -> Any:
        return self.loaded.model

    @cached_property
    def identity(self) -> dict[str, str]:
        """What answers depend on besides methods and budgets, by name."""
        return identity(self.loaded)

    def requests(self, item: Item) -> list[Request]:
        """All questions about an item, in batches that share its images."""
        if item.number in self._requests:
            return self._requests[item.number]
        made = self._prepare(item)
        size = sum(request.nbytes for request in made)
        if self._kept_bytes + size <= KEPT_BYTES:
            self._requests[item.number] = made
            self._kept_bytes += size
        return made

    def _prepare(self, item: Item) -> list[Request]:
        shown = item.shown
        images = [one for one in shown if isinstance(one, Image.Image)]
        videos = [one for one in shown if isinstance(one, Video)]
        asked = [posed(question) for question in item.questions]
        batches = [asked[start : start + LARGEST_BATCH] for start in range(0, len(asked), LARGEST_BATCH)]
        return [prepare(self.loaded, images, *batch, videos=videos) for batch in batches]

    def answer(self, item: Item, requests: Sequence[Request] | None = None) -> ItemAnswers:
        """Greedy answers to every question about an item, from prepared requests if they are given."""
        room = self.room(item)
        ready = self.requests(item) if requests is None else requests
        rows = [row for request in ready for row in generate(self.model, request.inputs(self.model), room)]
        texts = [self.loaded.processor.batch_decode(row[None], skip_special_tokens=True)[0] for row in rows]
        ends = end_tokens(self.model)
        return ItemAnswers(texts, [until_end(row.tolist(), ends) for row in rows])

    def tokens(self, item: Item) -> float:
        """Visual tokens of an item without compression."""
        return mean_content(visual_tokens(self.loaded, self.requests(item)[0]))

    def concentration(self, suite: Suite) -> float:
        """Mean concentration of the encoder attention over the first images of a suite.

        CoViST's reference is frozen to it, so that an answer does not depend on earlier images.
        """
        first = (self.requests(item)[0] for item in self.reference_items(suite))
        return mean_concentration(self.loaded, first)

    def reference_items(self, suite: Suite) -> list[Item]:
        """The items on which references are measured."""
        return suite.items(REFERENCE_IMAGES, self.reference_half)

    def room(self, item: Item) -> int:
        """The longest answer in tokens: as given, or that of the longest right answer and the end token."""
        if self._max_new_tokens is not None:
            return self._max_new_tokens
        tokenizer = getattr(self.loaded.processor, "tokenizer", self.loaded.processor)
        answers = [answer for question in item.questions for answer in question.answers]
        return max(map(len, tokenizer(answers, add_special_tokens=False).input_ids)) + 1


def bundled_concentration(loaded: LoadedModel) -> float:
    """The mean concentration of a model over the bundled scenes: the same number at every start."""
    return Subject(loaded).concentration(load_suite("scenes"))
