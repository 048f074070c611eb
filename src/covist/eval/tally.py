"""From answers to scores, by image and family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from covist.errors import CovistError
from covist.eval.agreement import same_answer, token_agreement
from covist.eval.metrics import METRICS
from covist.eval.questions import AGREEMENT
from covist.eval.records import ItemAnswers
from covist.eval.statistics import Tally
from covist.eval.suite import Item

Answers = Mapping[int, ItemAnswers]
"""Answers by the number of the item."""


def tally(items: Sequence[Item], answered: Answers, families: tuple[str, ...], vanilla: Answers | None = None) -> Tally:
    """Sum the scores per item and family; without a known right answer, that of `vanilla` is the right one."""
    asked = questions_asked(items, families)
    right = np.zeros_like(asked)
    for row, item in enumerate(items):
        for place, question in enumerate(item.questions):
            column = families.index(question.family)
            if question.metric == AGREEMENT:
                right[row, column] += _agreement(answered, vanilla, item.number, place)
            else:
                right[row, column] += METRICS[question.metric](answered[item.number].answers[place], question)
    return Tally(right, asked)


def questions_asked(items: Sequence[Item], families: tuple[str, ...]) -> np.ndarray:
    """Numbers of questions, [items, families]."""
    asked = np.zeros((len(items), len(families)))
    for row, item in enumerate(items):
        for question in item.questions:
            asked[row, families.index(question.family)] += 1
    return asked


def answer_agreement(items: Sequence[Item], answered: Answers, vanilla: Answers) -> float:
    """Share of the questions, in percent, with the same answer as the uncompressed model."""
    same = [
        same_answer(*said)
        for item in items
        for said in zip(answered[item.number].answers, vanilla[item.number].answers, strict=True)
    ]
    return 100.0 * sum(same) / len(same)


def _agreement(answered: Answers, vanilla: Answers | None, number: int, place: int) -> float:
    if vanilla is None:
        raise CovistError("agreement needs the answers of the uncompressed model")
    own, reference = answered[number].written, vanilla[number].written
    if own is None or reference is None:
        raise CovistError("these answers were stored without their tokens: evaluate them again in another directory")
    return token_agreement(own[place], reference[place])
