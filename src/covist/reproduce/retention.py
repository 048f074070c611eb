"""The paper's retention R, and POPE's F1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def retention(scores: Mapping[str, float | None], reference: Mapping[str, float | None]) -> float | None:
    """The paper's retention R in percent: the mean of score / reference over the reported tasks.

    scores: by task; None for tasks that are not reported
    reference: the scores of the uncompressed model

    Returns None if no task is reported, or if a reported task has no reference.

    >>> import covist.reproduce
    >>> full = {"gqa": 62.0, "pope": 85.8, "vqav2": 76.7}
    >>> covist.reproduce.retention({"gqa": 31.0, "pope": 85.8, "vqav2": None}, full)
    75.0
    """
    reported = {task: score for task, score in scores.items() if score is not None}
    references = {task: reference.get(task) for task in reported}
    ratios = [reported[task] / full for task, full in references.items() if full]
    return 100 * sum(ratios) / len(ratios) if ratios and len(ratios) == len(reported) else None


def pope_f1(answers: Iterable[tuple[str, str]]) -> float:
    """POPE's F1 of "yes" in percent, over pairs (answer, truth) of all splits together.

    This is not the mean over the splits. As in lmms-eval, answers other than yes and no are ignored.

    >>> import covist.reproduce
    >>> covist.reproduce.pope_f1([("yes", "yes"), ("no", "yes"), ("yes", "no"), ("no", "no")])
    50.0
    """
    pairs = list(answers)
    hits = pairs.count(("yes", "yes"))
    errors = pairs.count(("yes", "no")) + pairs.count(("no", "yes"))
    return 100 * 2 * hits / (2 * hits + errors) if hits else 0.0
