"""What a second question loses if it uses the tokens chosen for the first, and what choosing again recovers.

    PYTHONPATH=benchmarks python -m studies.dialogues --method covist-fixed --budget 32 --limit 40

Every question about an image (or each of the first `pairs`) is asked once as the second question, after its neighbour,
with the cache of the first answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from covist.api.compress import compress
from covist.eval.metrics import METRICS
from covist.eval.questions import Asked, posed
from covist.eval.statistics import Interval, Tally, accuracy, accuracy_difference
from covist.eval.subject import Subject
from covist.eval.suite import HALVES, SUITES, Item, load_suite
from covist.eval.tables import markdown_table, with_interval
from covist.methods.create import create_method
from covist.request.decoding import greedy
from covist.request.inputs import prepare

WAYS = {"uncompressed": None, "tokens of the first question": False, "chosen again": True}
"""Whether the second question chooses tokens again; None: nothing is compressed."""


@dataclass(frozen=True)
class Second:
    """Accuracy of second questions in percent, and the paired difference from using the first question's tokens."""

    way: str
    accuracy: float
    interval: Interval
    difference: float
    difference_interval: Interval


def second_questions(
    method: str = "covist-fixed",
    budget: int | str = 32,
    suite: str = "scenes",
    limit: int | None = None,
    half: str | None = None,
    pairs: int | None = None,
    seed: int = 0,
) -> list[Second]:
    """Ask the embedded model of a suite pairs of questions, in each of `WAYS`."""
    asked = load_suite(suite)
    subject, items = Subject.resolve(asked.model, asked.max_new_tokens), asked.items(limit, half)
    reference = subject.concentration(asked) if create_method(method).tracker is not None else None
    right: dict[str, np.ndarray] = {}
    for way, reselect in WAYS.items():
        loaded = subject.loaded
        common: dict[str, Any] = {"budget": budget, "method": method, "clip": loaded.clip, "concentration": reference}
        model = (loaded.model, loaded.processor)
        with nullcontext() if reselect is None else compress(*model, reselect=reselect, **common):
            right[way] = np.array([[_right(subject, item, pairs)] for item in items])  # [images, 1]
    counts = np.array([[len(item.questions[:pairs])] for item in items])
    tallies = {way: Tally(own, counts) for way, own in right.items()}
    first = tallies["tokens of the first question"]
    return [Second(way, *accuracy(own, seed), *accuracy_difference(own, first, seed)) for way, own in tallies.items()]


def _right(subject: Subject, item: Item, pairs: int | None) -> float:
    """How many of an item's first `pairs` questions are answered right when asked second, after their neighbours."""
    questions = item.questions
    asked = list(zip([*questions[1:], questions[0]], questions, strict=True))[:pairs]
    return sum(METRICS[second.metric](_answer(subject, item, first, second), second) for first, second in asked)


@torch.no_grad()
def _answer(subject: Subject, item: Item, first: Asked, second: Asked) -> str:
    """The answer to the second of two questions, which continues the cache of the first."""
    loaded, tokenizer = subject.loaded, subject.loaded.processor.tokenizer
    options = greedy(subject.room(item), return_dict_in_generate=True)
    inputs = prepare(loaded, [item.image], posed(first)).inputs(loaded.model)
    before = loaded.model.generate(**inputs, **options)
    turn = tokenizer(f"USER: {posed(second)} ASSISTANT:", add_special_tokens=False, return_tensors="pt").input_ids
    ids = torch.cat([before.sequences, turn.to(before.sequences.device)], dim=1)
    after = loaded.model.generate(input_ids=ids, past_key_values=before.past_key_values, **options)
    return tokenizer.decode(after.sequences[0, ids.shape[1] :], skip_special_tokens=True)


def table(found: Sequence[Second]) -> str:
    """Markdown: one row for each of `WAYS`."""
    rows = [
        [
            one.way,
            with_interval(one.accuracy, one.interval),
            with_interval(one.difference, one.difference_interval, signed=True),
        ]
        for one in found
    ]
    return markdown_table(["second question", "accuracy", "against the first question's tokens"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="second questions with the first question's tokens and with their own")
    parser.add_argument("--method", default="covist-fixed")
    parser.add_argument("--budget", default="32")
    parser.add_argument("--suite", default="scenes", choices=list(SUITES))
    parser.add_argument("--half", choices=HALVES, help="only images with even or odd numbers")
    parser.add_argument("--limit", type=int, default=40, help="number of images")
    parser.add_argument("--pairs", type=int, help="questions per image that are asked second; all by default")
    options = parser.parse_args()
    asked = (options.method, options.budget, options.suite, options.limit, options.half, options.pairs)
    print(table(second_questions(*asked)))


if __name__ == "__main__":
    main()
