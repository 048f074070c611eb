"""The text of an answer while its tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_INCOMPLETE = "\ufffd"
"""The replacement character, which tokenizers write for an incomplete character."""


class Detokenizer:
    """Turns tokens into text piece by piece; the pieces joined are the text of all tokens.

    The text of a token depends on the one before it (spaces, halves of characters), so each piece is the difference
    between two decodings of a short window. The cost is linear in the length of the answer.

    `DecodeStream` of tokenizers does the same, but leaves spaces that `decode` cleans up, raises on byte tokens that
    make no text, and takes no tokenizer that is written in Python.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = self._written = 0  # where the window begins, and up to where its text has been returned

    def add(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        self._tokens.append(token)
        text = self._fresh()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._context, self._written = self._written, len(self._tokens)
        return text

    def piece(self, token: int) -> str:
        """The text that `token` would add, or its name if it has none: an end token, for example."""
        before = self._decode(self._tokens[self._context :])
        text = self._decode([*self._tokens[self._context :], token])
        return text[len(before) :] or str(self._tokenizer.convert_ids_to_tokens(token))

    def rest(self) -> str:
        """The remaining text after the last token, complete or not."""
        text = self._fresh()
        self._written = len(self._tokens)
        return text

    def _fresh(self) -> str:
        before = self._decode(self._tokens[self._context : self._written])
        return self._decode(self._tokens[self._context :])[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


class StopStrings:
    """Passes text up to the first stop string, and holds back what might become one.

    >>> stops = StopStrings(["END"])
    >>> stops.add("the E"), stops.add("N"), stops.add("D of it"), stops.found
    ('the ', '', '', True)
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """Add text; returns what can be shown now."""
        text = self._held + text
        places = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        keep = len(text) - self._may_begin(text)
        self._held = text[keep:]
        return text[:keep]

    def rest(self) -> str:
        """The text that was held back but did not become a stop string."""
        text, self._held = self._held, ""
        return text

    def _may_begin(self, text: str) -> int:
        """Length of the longest suffix of `text` that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
