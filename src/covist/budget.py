"""Budgets: how many visual tokens an image may keep, as values that compare equal however they were written.

Text and numbers become a `Budget` where they enter (Python arguments, options, requests, files) and nowhere else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from covist.errors import CovistError
from covist.files import plain
from covist.formulas.ops import round_half_up

Written = int | float | str
"""A budget as people write it: 64, "64", 0.11, "11%", "auto", "auto:0.9:16:192", "none"."""
_AUTO, _NONE = "auto", "none"


class Budget(ABC):
    """How many visual tokens an image may keep; `str` gives the canonical spelling, which `parse` reads back.

    >>> covist.Budget.parse("64") == covist.Budget.parse(64), covist.Budget.parse(0.1) == covist.Budget.parse("10%")
    (True, True)
    >>> str(covist.Budget.parse("auto"))
    'auto:0.9'
    """

    @staticmethod
    def parse(given: Budget | Written) -> Budget:
        """The budget that a text or a number stands for; anything else is refused in one line."""
        if isinstance(given, Budget):
            return given
        given = plain(given)
        text = given.strip() if isinstance(given, str) else None
        if text == _NONE:
            return Plain()
        found = Coverage.read(text) if text is not None and text.partition(":")[0].strip() == _AUTO else _fixed(given)
        if found is None:
            raise CovistError(refusal(given))
        return found

    @abstractmethod
    def count_for(self, tokens: int, frames: int = 1) -> int:
        """The most tokens that an image of `tokens` may keep; all of them leave it uncompressed."""

    @abstractmethod
    def __str__(self) -> str: ...

    @property
    def written(self) -> int | str:
        """The budget as JSON holds it: a count as a number, any other as text."""
        return str(self)


@dataclass(frozen=True)
class Count(Budget):
    """So many tokens of an image, or of each frame of a video."""

    tokens: int

    def count_for(self, tokens: int, frames: int = 1) -> int:
        return min(self.tokens * frames, tokens)

    def __str__(self) -> str:
        return str(self.tokens)

    @property
    def written(self) -> int:
        return self.tokens


@dataclass(frozen=True)
class Share(Budget):
    """A share of the tokens of an image, or of all frames of a video together; in (0, 1]."""

    share: float

    def count_for(self, tokens: int, frames: int = 1) -> int:
        return min(max(1, round_half_up(self.share * tokens)), tokens)

    def __str__(self) -> str:
        return f"{(Decimal(repr(self.share)) * 100).normalize():f}%"


@dataclass(frozen=True)
class Coverage(Budget):
    """As many tokens as each image needs: the fewest whose coverage reaches `level`, within bounds.

    >>> covist.Budget.parse("auto:0.9:16:50%")
    Coverage(level=0.9, least=Count(tokens=16), most=Share(share=0.5))
    """

    level: float = 0.9
    least: Count | Share = Share(1 / 36)
    most: Count | Share = Share(1 / 3)

    @classmethod
    def read(cls, text: str) -> Coverage | None:
        """Parse "auto", "auto:LEVEL" or "auto:LEVEL:LEAST:MOST"; None if a part of it is wrong."""
        _, *parts = text.split(":")
        if not parts:
            return cls()
        level, bounds = _number(parts[0]), [_fixed(part) for part in parts[1:]]
        if len(bounds) not in (0, 2) or not 0 < level <= 1:
            return None
        whole = [bound for bound in bounds if bound is not None]
        return cls(float(level), *whole) if len(whole) == len(bounds) else None

    def bounds(self, tokens: int, frames: int = 1) -> tuple[int, int]:
        """The fewest and the most tokens for an image of `tokens`; if they conflict, the upper bound wins."""
        least, most = (bound.count_for(tokens, frames) for bound in (self.least, self.most))
        return min(least, most), most

    def count_for(self, tokens: int, frames: int = 1) -> int:
        return self.bounds(tokens, frames)[1]

    def __str__(self) -> str:
        level = f"{_AUTO}:{repr(self.level).removesuffix('.0')}"
        return level if self == Coverage(self.level) else f"{level}:{self.least}:{self.most}"


@dataclass(frozen=True)
class Plain(Budget):
    """All tokens: the plain model, where a call or a request can choose it."""

    def count_for(self, tokens: int, frames: int = 1) -> int:
        return tokens

    def __str__(self) -> str:
        return _NONE


def refusal(given: Any) -> str:
    """Why something is not a budget that compresses, and what is one."""
    allowed = (
        'a positive number of tokens (64), a fraction in (0, 1] (0.11), a percentage ("11%"), '
        'or "auto", "auto:LEVEL" or "auto:LEVEL:LEAST:MOST" ("auto:0.9:16:192"), LEVEL in (0, 1]'
    )
    return f"budget must be {allowed}, got {given!r}"


def _fixed(given: Any) -> Count | Share | None:
    number = _number(given)
    if isinstance(number, Integral):
        return Count(int(number)) if int(number) > 0 else None
    return Share(float(number)) if 0 < number <= 1 else None


def _number(given: Any) -> Any:
    """A count (any integer type, including numpy's) or a share; nan if it is neither."""
    if not isinstance(given, str):
        return given if isinstance(given, Real) and not isinstance(given, bool) else math.nan
    text = given.strip()
    try:
        if text.endswith("%"):
            return float(Decimal(text[:-1]).scaleb(-2))  # exact, so that a share that is written down is read back
        return int(text) if text.isdecimal() else float(text)
    except (ValueError, ArithmeticError):
        return math.nan
