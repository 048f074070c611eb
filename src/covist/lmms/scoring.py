"""How lmms-eval scores an exported suite: as `covist eval` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from covist.eval.metrics import METRICS
from covist.eval.questions import Question

ACCURACY = "accuracy"


def process_results(document: Mapping[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """Score an answer, for the family of the question and for the accuracy."""
    family, metric = document["family"], document["metric"]
    asked = Question(document["question"], document["answers"], metric, family, document["choices"])
    score = METRICS[metric](answers[0], asked)
    return {family: score, ACCURACY: {"score": score, "family": family, "image": document["images"][0]}}


def mean_of_families(scored: Sequence[Mapping[str, Any]]) -> float:
    """The mean of the families' scores, whatever the number of questions in each."""
    families = defaultdict(list)
    for one in scored:
        families[one["family"]].append(one["score"])
    return fmean(map(fmean, families.values()))
