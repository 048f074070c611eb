"""Which rows share a batch: those of similar length, as many as fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from covist.request.conversations import Posed

AUTO_TOKENS = {"cpu": 8192}
"""Tokens of a batch, padding included, before compression: larger batches are no faster per row."""
AUTO_TOKENS_ELSEWHERE = 32_768


@dataclass(frozen=True)
class ReadyRow:
    """A row that is ready for the model."""

    id: str
    posed: Posed

    @property
    def length(self) -> int:
        """Tokens of its prompt, visual tokens before compression included."""
        return self.posed.request.length


@dataclass(frozen=True)
class Limit:
    """How large a batch may be: in rows, or in tokens with padding."""

    rows: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, rows: int | None, device: str) -> Limit:
        return cls(rows) if rows is not None else cls(tokens=AUTO_TOKENS.get(device, AUTO_TOKENS_ELSEWHERE))

    def allows(self, rows: int, longest: int) -> bool:
        """One row is always allowed: there is no smaller batch."""
        fits = (self.rows is None or rows <= self.rows) and (self.tokens is None or rows * longest <= self.tokens)
        return rows == 1 or fits

    def below(self, batch: Sequence[ReadyRow]) -> Limit:
        """A limit of half the tokens of a batch that was too large."""
        tokens = len(batch) * max(one.length for one in batch)
        return replace(self, tokens=max(1, tokens // 2))


def first_batch(rows: Sequence[ReadyRow], limit: Limit) -> int:
    """How many of these rows, sorted by length, form the next batch: neighbours need little padding."""
    count = 1
    while count < len(rows) and limit.allows(count + 1, rows[count].length):
        count += 1
    return count
