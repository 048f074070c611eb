"""The questions of an evaluation, in batches of a kind."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Question:
    """One request of lmms-eval: a document of a task, how it is shown, and how it is answered."""

    task: str
    split: str
    document: int
    text: str
    show: Callable[[Any], Any]
    generation: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Questions of one kind can share a batch: one task, written in one way."""
        return json.dumps([self.task, self.split, self.generation], sort_keys=True, default=str)


def batches(questions: Sequence[Question], size: int) -> Iterator[list[int]]:
    """Numbers of questions that are answered together.

    The longest texts of a kind come first: padding stays small, and what does not fit into memory fails at once.
    """
    kinds: dict[str, list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        kinds[question.kind].append(number)
    for numbers in kinds.values():
        numbers.sort(key=lambda number: -len(questions[number].text))
        yield from (numbers[start : start + size] for start in range(0, len(numbers), size))
