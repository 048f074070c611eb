"""Budgets: how many visual tokens an image may keep, as values that compare equal however they were written.

`Count`, `Share`, `Coverage` and `Plain` are given to each image alone, `Total` and `Ages` to all images of a prompt.

Text and numbers become a `Budget` where they enter (Python arguments, options, requests, files) and nowhere else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, ClassVar

from covist.errors import CovistError
from covist.files import plain
from covist.formulas.ops import round_half_up
from covist.units import counted

Written = int | float | str
"""A budget as people write it: 64, "64", 0.11, "11%", "auto", "auto:0.9:16:192", "total:2048", "ages:64,16", "none"."""
_AUTO, _NONE, _TOTAL, _AGES = "auto", "none", "total", "ages"
USUAL_FLOOR = 16
"""Tokens of each image before the rest of a total goes where it covers most, as far as the total is enough."""


class Budget(ABC):
    """How many visual tokens an image may keep; `str` gives the canonical spelling, which `parse` reads back.

    >>> covist.Budget.parse("64") == covist.Budget.parse(64), covist.Budget.parse(0.1) == covist.Budget.parse("10%")
    (True, True)
    >>> str(covist.Budget.parse("auto"))
    'auto:0.9'
    """

    says_count: ClassVar[bool] = True
    """Whether the size of an image is enough to say how many tokens it keeps."""
    of_prompt: ClassVar[bool] = False
    """Whether it looks at all images of a prompt."""

    @staticmethod
    def parse(given: Budget | Written) -> Budget:
        """The budget that a text or a number stands for; anything else is refused in one line."""
        if isinstance(given, Budget):
            return given
        given = plain(given)
        text = given.strip() if isinstance(given, str) else ""
        if text == _NONE:
            return Plain()
        kinds: dict[str, type[Coverage | Total | Ages]] = {_AUTO: Coverage, _TOTAL: Total, _AGES: Ages}
        kind = kinds.get(text.partition(":")[0].strip())
        found = _fixed(given) if kind is None else kind.read(text)
        if found is None:
            raise CovistError(refusal(given))
        return found

    @abstractmethod
    def count_for(self, tokens: int, frames: int = 1) -> int:
        """The most tokens that an image of `tokens` may keep; all of them leave it uncompressed."""

    def sum_for(self, images: Sequence[tuple[int, int]]) -> int:
        """The most tokens that all images of a prompt may keep, each given as (tokens, frames)."""
        return sum(self.count_for(*image) for image in images)

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

    says_count = False
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
class Total(Budget):
    """So many tokens of all images and frames of a prompt together, shared by what they add to coverage.

    tokens: of all images
    floor: the fewest tokens of each image; None is 16, or an equal share where the total is not enough for 16

    >>> covist.Budget.parse("total:2048:64")
    Total(tokens=2048, floor=64)
    """

    says_count = False
    of_prompt = True
    tokens: int
    floor: int | None = None

    @classmethod
    def read(cls, text: str) -> Total | None:
        """Parse "total:TOKENS" or "total:TOKENS:FLOOR"; None if a part of it is wrong."""
        numbers = [_fixed(part) for part in text.split(":")[1:]]
        counts = [one.tokens for one in numbers if isinstance(one, Count)]
        if len(counts) != len(numbers) or len(counts) not in (1, 2) or counts[-1] > counts[0]:
            return None
        return cls(*counts)

    def count_for(self, tokens: int, frames: int = 1) -> int:
        return min(self.tokens, tokens)

    def sum_for(self, images: Sequence[tuple[int, int]]) -> int:
        return min(self.tokens, super().sum_for(images))

    def __str__(self) -> str:
        return f"{_TOTAL}:{self.tokens}" + ("" if self.floor is None else f":{self.floor}")


@dataclass(frozen=True)
class Ages(Budget):
    """Tokens of each image (or frame) by the age of its turn: the newest turn with images has the first number.

    steps: counts or shares, none above the one before it; images older than that have the last one

    >>> str(covist.Budget.parse("ages: 256, 128, 64, 16").at(age=5))
    '16'
    """

    says_count = False
    of_prompt = True
    steps: tuple[Count, ...] | tuple[Share, ...]

    @classmethod
    def read(cls, text: str) -> Ages | None:
        """Parse "ages:256,128,64"; None if a part of it is wrong, or an older image would have more than a newer."""
        steps = [_fixed(part) for part in text.partition(":")[2].split(",")]
        counts = tuple(one for one in steps if isinstance(one, Count))
        shares = tuple(one for one in steps if isinstance(one, Share))
        sizes: list[float] = [one.tokens for one in counts] or [one.share for one in shares]
        if len(sizes) != len(steps) or sizes != sorted(sizes, reverse=True):
            return None
        return cls(counts or shares)

    def at(self, age: int) -> Count | Share:
        """The budget of an image after which `age` turns have brought others."""
        return self.steps[min(age, len(self.steps) - 1)]

    def count_for(self, tokens: int, frames: int = 1) -> int:
        return self.at(0).count_for(tokens, frames)

    def __str__(self) -> str:
        return f"{_AGES}:{','.join(map(str, self.steps))}"


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
        'a positive number of tokens (64), a fraction in (0, 1] (0.11), a percentage ("11%"), "total:TOKENS" or '
        '"total:TOKENS:FLOOR" for all images of a prompt ("total:2048:16"), "ages:NEWEST,OLDER,..." that never rise '
        '("ages:256,128,64"), or "auto", "auto:LEVEL" or "auto:LEVEL:LEAST:MOST" ("auto:0.9:16:192"), LEVEL in (0, 1]'
    )
    return f"budget must be {allowed}, got {given!r}"


def require_room(images: int, budget: Budget | None, max_visual_tokens: int | None) -> None:
    """Refuse a prompt with more images than there are tokens for: none is left out silently."""
    limits = [(f"max_visual_tokens={max_visual_tokens}", max_visual_tokens, 1)]
    if isinstance(budget, Total):
        limits.append((f"budget={str(budget)!r}", budget.tokens, budget.floor or 1))
    for name, most, least in limits:
        if most is not None and images * least > most:
            raise CovistError(
                f"{name} is not enough for {counted(images, 'image')} of at least {counted(least, 'token')} each; "
                f"give {images * least} or more, or show fewer images"
            )


def refuse_of_prompt(budget: Budget, where: str, kinds: type[Budget] | tuple[type[Budget], ...] = Budget) -> None:
    """Refuse a budget of a prompt, of some kinds only if they are given, where it has no meaning."""
    if budget.of_prompt and isinstance(budget, kinds):
        raise CovistError(f"budget={str(budget)!r}: {where}; give a count, a share or auto")


def check_cap(max_visual_tokens: Any) -> None:
    """Refuse a cap that is not a number of tokens."""
    is_number = isinstance(max_visual_tokens, int) and not isinstance(max_visual_tokens, bool)
    if max_visual_tokens is not None and not (is_number and max_visual_tokens > 0):
        raise CovistError(f"max_visual_tokens must be a positive number of tokens (4096), got {max_visual_tokens!r}")


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
