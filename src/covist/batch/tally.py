"""The progress of a job, and what it saved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from covist.batch.answers import RowAnswer

_DETAIL = re.compile(r" \([^()]*(\([^()]*\)[^()]*)*\)$")
_VERBS = "does not|is a|is not|is damaged|is empty|is too|has|cannot be"
_IMAGE = re.compile(rf"\b(image|video) .+?(?= (?:{_VERBS})\b|: )")
_DIFFERENT = re.compile(r"'[^']*'|\b\d[\d,.]*\b")


@dataclass
class JobTally:
    """Counts over the finished rows of a job.

    rows:     all rows of the input
    reasons:  why rows failed, in words without names and numbers, and how many failed for each
    repeated: rows with the same id and content as an earlier row; they get no second answer
    whole:    answered rows with images, none of which lost a token
    capped:   answered rows with an image on which `auto` reached its maximum without covering enough
    seconds:  model time of all workers together
    """

    rows: int
    answered: int = 0
    errors: int = 0
    repeated: int = 0
    whole: int = 0
    capped: int = 0
    tokens_before: int = 0
    tokens_after: float = 0.0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        return self.answered + self.errors + self.repeated

    def add(self, answers: Iterable[RowAnswer], sign: int = 1) -> None:
        """Count answers; `sign=-1` subtracts them again."""
        for answer in answers:
            self.errors += sign * (answer.error is not None)
            if answer.error is not None:
                self.reasons[reason(answer.error)] += sign
            self.answered += sign * (answer.error is None)
            self.whole += sign * (0 < (answer.tokens_before or 0) <= (answer.tokens_after or 0.0))
            self.capped += sign * bool(answer.capped)
            self.tokens_before += sign * (answer.tokens_before or 0)
            self.tokens_after += sign * (answer.tokens_after or 0.0)
            self.seconds += sign * (answer.seconds or 0.0)

    @property
    def tokens_saved(self) -> float:
        return self.tokens_before - self.tokens_after

    def to_dict(self) -> dict[str, Any]:
        reasons = {words: count for words, count in self.reasons.most_common() if count > 0}
        return {**vars(self), "reasons": reasons, "tokens_saved": self.tokens_saved}


def reason(error: str) -> str:
    """An error without what differs from row to row: names of images, quotations, numbers.

    >>> reason("image photos/cat 7.png does not exist")
    'image … does not exist'
    >>> reason("row 12 is not a JSON object (Expecting value at character 1)")
    'row … is not a JSON object'
    """
    words = _IMAGE.sub(r"\1 …", _DETAIL.sub("", error))
    return _DIFFERENT.sub("…", words)
