"""How lmms-eval scores an exported suite: as `covist eval` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from covist.eval.metrics import normalise

ACCURACY = "accuracy"


def process_results(document: Mapping[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """An exact match counts for the family of the question, and for the accuracy."""
    right = float(normalise(answers[0]) == normalise(document["answer"]))
    family = document["family"]
    return {family: right, ACCURACY: {"score": right, "family": family, "image": document["image"]}}


def mean_of_families(scored: Sequence[Mapping[str, Any]]) -> float:
    """The mean of the families' scores, however many questions each of them has."""
    families = defaultdict(list)
    for one in scored:
        families[one["family"]].append(one["score"])
    return fmean(map(fmean, families.values()))
