"""What a visitor chose, and the link that restores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

COVIST = "covist"
"""CoViST is the only method with strategies."""
STRATEGIES = ("fixed", "pro")
LONGEST_QUESTION = 2000
"""Characters of a question that a link carries."""


@dataclass(frozen=True)
class Choice:
    """Everything that determines an answer, apart from an uploaded image.

    >>> Choice(example=2, question="how many rings are there?", budget=32).link
    '?example=2&question=how+many+rings+are+there%3F&budget=32&method=covist&strategy=fixed'
    """

    example: int | None = 0  # None for an uploaded image
    question: str = ""
    budget: int = 64
    method: str = COVIST
    strategy: str = "fixed"

    @property
    def method_name(self) -> str:
        """The method as the server names it."""
        return f"{COVIST}-{self.strategy}" if self.method == COVIST else self.method

    @property
    def compression(self) -> dict[str, Any]:
        """The compression settings of a request."""
        return {"budget": self.budget, "method": self.method_name}

    @property
    def link(self) -> str:
        """An address relative to the page, without an uploaded image."""
        own = {} if self.example is None else {"example": self.example}
        rest = {"question": self.question[:LONGEST_QUESTION], "budget": self.budget, "method": self.method}
        return f"?{urlencode(own | rest | ({'strategy': self.strategy} if self.method == COVIST else {}))}"

    @classmethod
    def named(cls, method: str, **others: Any) -> Choice:
        """The choice of a method by its name on the server."""
        kind, _, strategy = method.partition("-")
        if kind == COVIST and strategy in STRATEGIES:
            return cls(method=COVIST, strategy=strategy, **others)
        return cls(method=method, **others)

    def restored(self, query: Mapping[str, str], examples: int, methods: tuple[str, ...], tokens: int) -> Choice:
        """This choice changed by the values of a link; invalid values are ignored."""
        found: dict[str, Any] = {}
        if (example := _whole(query.get("example"), 0, examples - 1)) is not None:
            found["example"] = example
        if (budget := _whole(query.get("budget"), 1, tokens)) is not None:
            found["budget"] = budget
        if query.get("question", "").strip():
            found["question"] = query["question"][:LONGEST_QUESTION]
        if query.get("method") in methods:
            found["method"] = query["method"]
        if query.get("strategy") in STRATEGIES:
            found["strategy"] = query["strategy"]
        return replace(self, **found)


def _whole(text: str | None, low: int, high: int) -> int | None:
    """The whole number in a text, if it is between `low` and `high`."""
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 9:
        return None
    return int(text) if low <= int(text) <= high else None
