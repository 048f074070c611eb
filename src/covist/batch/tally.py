"""The progress of a job, and what it saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from covist.batch.answers import RowAnswer


@dataclass
class JobTally:
    """Counts over the finished rows of a job.

    rows:     all rows of the input
    repeated: rows with the same id and content as an earlier row; they get no second answer
    seconds:  model time of all workers together
    """

    rows: int
    answered: int = 0
    errors: int = 0
    repeated: int = 0
    tokens_before: int = 0
    tokens_after: float = 0.0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return self.answered + self.errors + self.repeated

    def add(self, answers: Iterable[RowAnswer], sign: int = 1) -> None:
        """Count answers; `sign=-1` subtracts them again."""
        for answer in answers:
            self.errors += sign * (answer.error is not None)
            self.answered += sign * (answer.error is None)
            self.tokens_before += sign * (answer.tokens_before or 0)
            self.tokens_after += sign * (answer.tokens_after or 0.0)
            self.seconds += sign * (answer.seconds or 0.0)

    @property
    def tokens_saved(self) -> float:
        return self.tokens_before - self.tokens_after

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_saved": self.tokens_saved}
