"""Batches that fail: halved and tried again, until only the items that fail alone have failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from covist.errors import CovistError, MethodFailure
from covist.faults import is_broken, is_out_of_memory

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """Why an item has no result. The error itself is not kept: it would hold the memory of its batch."""

    is_memory: bool
    line: str
    is_refusal: bool = False  # whether the item asks for what is impossible

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if is_out_of_memory(error):
            return cls(True, "out of memory, even in a batch of one row")
        return cls(False, one_line(error), is_refusal(error))


@dataclass(frozen=True)
class Attempt(Generic[Item, Result]):
    """A part of a batch, and its result, or why its only item has none."""

    items: Sequence[Item]
    result: Result | None = None
    failure: Failure | None = None

    @property
    def error(self) -> str | None:
        """The failure in one line."""
        return None if self.failure is None else self.failure.line


def in_halves(
    batch: Sequence[Item],
    run: Callable[[Sequence[Item]], Result],
    note: Callable[[Exception, Sequence[Item]], None] = lambda error, part: None,
) -> Iterator[Attempt[Item, Result]]:
    """Run a batch, and its halves if it fails; errors of a broken accelerator are raised.

    note: is told of every part that failed

    >>> def invert(numbers): return [1 / number for number in numbers]
    >>> [(one.items, one.result, one.error) for one in in_halves([1, 2, 0, 4], invert)]
    [([1, 2], [1.0, 0.5], None), ([0], None, 'ZeroDivisionError: division by zero'), ([4], [0.25], None)]
    """
    failure = None
    try:
        result = run(batch)
    except Exception as error:
        if is_broken(error):
            raise
        note(error, batch)
        failure = Failure.of(error)
    if failure is None:
        yield Attempt(batch, result)
        return
    if failure.is_memory:
        _release_memory()
    if len(batch) == 1:
        yield Attempt(batch, failure=failure)
        return
    middle = len(batch) // 2
    yield from in_halves(batch[:middle], run, note)
    yield from in_halves(batch[middle:], run, note)


def is_refusal(error: Exception) -> bool:
    """Whether an error says what is wrong with what was asked."""
    return isinstance(error, CovistError) and not isinstance(error, MethodFailure)


def one_line(error: Exception) -> str:
    """Why something failed; characters that UTF-8 cannot encode (of a name that is not text) are escaped."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    line = text if isinstance(error, CovistError) else f"{type(error).__name__}: {text}"
    return line.encode("utf-8", "backslashreplace").decode()


def _release_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
