"""The model of the plugin: conversations in, answers and counts of visual tokens out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from covist.lmms.arguments import Arguments
from covist.lmms.generation import Generation
from covist.request.answer import compressed
from covist.request.concentration import REFERENCE_IMAGES, mean_concentration
from covist.request.conversations import Conversation
from covist.request.loading import load_model
from covist.request.together import Shown, Together

SEARCHED = 1024
"""Documents of a task that are searched for different images."""


@dataclass(frozen=True)
class LmmsAnswer:
    """One answer, and what it cost."""

    text: str
    new_tokens: int
    shown: Shown


class Answerer:
    """A loaded model that answers batches of conversations under one method and budget."""

    def __init__(self, arguments: Arguments, device: str | None = None):
        how = arguments.loading if device is None else replace(arguments.loading, device=device)
        self.loaded = load_model(arguments.pretrained, arguments.clip, how)
        self._handle = compressed(self.loaded, arguments.setup).__enter__()  # as long as the answerer lives
        self._tracker = None if self._handle is None else self._handle.settings.method.tracker
        self.needs_reference = self._tracker is not None and self._tracker.frozen is None and not arguments.is_running
        """Whether each task must measure a concentration reference before its first answer."""
        self._together = Together(self.loaded, self._handle)

    def measure_reference(self, conversations: Iterable[Conversation]) -> float | None:
        """The mean concentration over the first conversations with different images; None if there are no images."""
        new: dict[int, Conversation] = {}
        for conversation in islice(conversations, SEARCHED):
            if conversation.shows_something:
                new.setdefault(conversation.fingerprint, conversation)
            if len(new) == REFERENCE_IMAGES:
                break
        return mean_concentration(self.loaded, (one.request(self.loaded) for one in new.values())) if new else None

    def freeze(self, concentration: float | None) -> None:
        """Use this concentration reference from now on."""
        if self._tracker is not None:
            self._tracker.freeze(concentration)

    def answer(self, conversations: Sequence[Conversation], generation: Generation) -> list[LmmsAnswer]:
        """Answers to a batch; with a frozen reference, no answer depends on its neighbours."""
        said = self._together.answer([one.pose(self.loaded) for one in conversations], **dict(generation.options))
        return [LmmsAnswer(generation.cut(one.text), len(one.tokens), one.shown) for one in said]
