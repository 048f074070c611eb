"""The questions of an evaluation, in batches of one kind."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TaskQuestion:
    """One request of lmms-eval: a document of a task, how to show it, and how to generate the answer."""

    task: str
    split: str
    document: int
    text: str
    show: Callable[[Any], Any]
    generation: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Questions of one kind can share a batch: same task, same generation settings."""
        return json.dumps([self.task, self.split, self.generation], sort_keys=True, default=str)


def batches(questions: Sequence[TaskQuestion], size: int) -> Iterator[list[int]]:
    """The numbers of the questions in each batch.

    The longest texts of a kind come first, so there is little padding, and a lack of memory shows at once.
    """
    kinds: dict[str, list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        kinds[question.kind].append(number)
    for numbers in kinds.values():
        numbers.sort(key=lambda number: -len(questions[number].text))
        yield from (numbers[start : start + size] for start in range(0, len(numbers), size))
