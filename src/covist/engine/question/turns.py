"""The turns of one prompt, found once: where the markers between turns stand among its tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from covist.engine.question.markers import TurnMarkers

Decode = Callable[[list[int]], str]


class Span(Protocol):
    """Prompt rows [start, end) of an image."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


@dataclass(frozen=True)
class Marker:
    """Where a turn begins: the marker is the text tokens [start, end) of the prompt."""

    start: int
    end: int


class Turns:
    """The turns of a prompt whose text stands in some of its rows.

    The text is decoded in runs without a gap, which end where an image begins. A marker lies within one run, so its
    tokens are searched there alone, and the whole search is linear in the prompt.
    """

    def __init__(self, rows: Tensor, tokens: list[int] | None, markers: TurnMarkers, decode: Decode):
        """`rows` [n] are the prompt rows of the text, `tokens` [n] their ids (None if unknown)."""
        self.rows = rows
        self._tokens, self._markers, self._decode = tokens, markers, decode

    @cached_property
    def _places(self) -> list[int]:
        return self.rows.tolist()

    @cached_property
    def assistant(self) -> list[Marker]:
        """Where assistant turns begin, in order."""
        return self._found(self._markers.assistant_pattern)

    @cached_property
    def beginnings(self) -> list[Marker]:
        """Where turns of any role begin, in order."""
        return self._found(self._markers.turn_pattern)

    def text_before(self, row: int) -> int:
        """How many text tokens stand before a prompt row."""
        return bisect_left(self._places, row)

    def until_assistant(self, start: int) -> slice:
        """The text tokens from `start` up to the next assistant turn."""
        following = (marker.start for marker in self.assistant if marker.start >= start)
        return slice(start, next(following, len(self._places)))

    def since_turn_began(self, end: int) -> slice:
        """The text tokens before `end` back to the beginning of their turn."""
        before = (marker.end for marker in reversed(self.beginnings) if marker.end <= end)
        return slice(next(before, 0), end)

    def first_of_turn(self, images: Sequence[Span], number: int) -> int:
        """The first image of the turn that image `number` belongs to: images of one turn share its instruction."""
        here = self.text_before(images[number].start)
        answers = bisect_right(self.assistant, here, key=lambda marker: marker.end)
        if answers == 0:
            return 0
        border = self.assistant[answers - 1].end
        return bisect_left(images, border, key=lambda image: self.text_before(image.start))

    @cached_property
    def _runs(self) -> list[tuple[int, list[int], str]]:
        """(first token, tokens, text) of each run of text without a gap."""
        tokens, places = self._tokens, self._places
        if tokens is None:
            return []
        starts = [at for at, row in enumerate(places) if at == 0 or row != places[at - 1] + 1]
        runs = [tokens[start:end] for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]
        return [(start, run, self._decode(run)) for start, run in zip(starts, runs, strict=True)]

    def _found(self, pattern: str) -> list[Marker]:
        if not pattern:
            return []
        found = []
        for first, tokens, text in self._runs:
            for hit in re.finditer(pattern, text):
                start = self._token_at(tokens, hit.start() + 1) - 1
                found.append(Marker(first + start, first + self._token_at(tokens, hit.end(), start)))
        return found

    def _token_at(self, tokens: list[int], characters: int, low: int = 0) -> int:
        """The smallest number of leading tokens whose text has at least `characters` characters."""
        high = len(tokens)
        while low < high:
            middle = (low + high) // 2
            if len(self._decode(tokens[:middle])) >= characters:
                high = middle
            else:
                low = middle + 1
        return low
