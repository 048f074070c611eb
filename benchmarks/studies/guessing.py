"""How much of the films' questions can be guessed, and what a model answers about a film that it is not shown.

Guessing takes the most frequent answer to each wording, with the names of colors, shapes and digits left out. A blind
model is asked each film's questions while it is shown the next film of the suite.

    PYTHONPATH=benchmarks python -m studies.guessing
    PYTHONPATH=benchmarks python -m studies.guessing --model tiny-video --half even --limit 100
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from covist.eval.records import ItemAnswers
from covist.eval.subject import Subject
from covist.eval.suite import HALVES, Item, load_suite
from covist.eval.tally import tally
from covist.tiny.films import FILM_FAMILIES, film_questions_for, sample_film
from covist.tiny.questions import Question
from covist.tiny.scenes import COLORS, SHAPES, TRAIN_SEEDS

_NAMED = re.compile(rf"\b({'|'.join([*COLORS, *SHAPES])}|digit \d)\b")


def wording(question: str) -> str:
    """A question without the names of colors, shapes and digits.

    >>> wording("did the red ring appear before or after the digit 5 appeared?")
    'did the * * appear before or after the * appeared?'
    """
    return _NAMED.sub("*", question)


def guessed(questions: Iterable[Question]) -> dict[str, float]:
    """Percent right, by family, if the most frequent answer to each wording is given."""
    answers: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for item in questions:
        answers[item.family, wording(item.question)][item.answer] += 1
    right, asked = Counter[str](), Counter[str]()
    for (family, _), given in answers.items():
        right[family] += max(given.values())
        asked[family] += given.total()
    return {family: 100 * right[family] / asked[family] for family in FILM_FAMILIES if asked[family]}


def seeing_and_blind(limit: int, half: str | None, model: Any = None) -> list[dict[str, float]]:
    """Percent right, by family, about the film that is shown, and about the one before it."""
    suite = load_suite("films")
    items, subject = suite.items(limit, half), Subject.resolve(suite.model if model is None else model)
    return [
        _accuracy(subject, items),
        _accuracy(subject, [_moved(one, shown) for one, shown in zip(items, items[1:] + items[:1], strict=True)]),
    ]


def _moved(item: Item, shown: Item) -> Item:
    """The questions about one film with another film; its number is unused, as the subject remembers what it showed."""
    return replace(item, draw=shown.draw, number=-1 - item.number)


def _accuracy(subject: Subject, items: list[Item]) -> dict[str, float]:
    answered = {item.number: ItemAnswers(item.number, subject.answer(item).texts, 0.0, 0.0) for item in items}
    counted = tally(items, answered, tuple(FILM_FAMILIES))
    right, asked = counted.right.sum(0), counted.asked.sum(0)
    return {family: 100 * right[at] / asked[at] for at, family in enumerate(FILM_FAMILIES) if asked[at]}


def table(columns: dict[str, dict[str, float]]) -> str:
    """Markdown: one row per family, and their mean."""
    lines = [f"| family | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for family in FILM_FAMILIES:
        if all(family in column for column in columns.values()):
            lines.append(f"| {family} | {' | '.join(f'{column[family]:.1f}' for column in columns.values())} |")
    means = (f"{np.mean(list(column.values())):.1f}" for column in columns.values())
    return "\n".join([*lines, f"| mean | {' | '.join(means)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description="what can be guessed about films")
    parser.add_argument("--films", type=int, default=3_000, help="training films to count answers of")
    parser.add_argument("--model", help="also ask a model: a folder, or an embedded one")
    parser.add_argument("--half", choices=HALVES, help="of the suite, for the model")
    parser.add_argument("--limit", type=int, default=100, help="films of the suite, for the model")
    options = parser.parse_args()
    films = map(sample_film, TRAIN_SEEDS[: options.films])
    columns = {"guessed": guessed(item for film in films for item in film_questions_for(film))}
    if options.model:
        seeing, blind = seeing_and_blind(options.limit, options.half, options.model)
        columns |= {"seeing": seeing, "another film": blind}
    print(table(columns))


if __name__ == "__main__":
    main()
