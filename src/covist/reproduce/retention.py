"""The paper's scores and their average: retention R, POPE's F1 and the variants of MME."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SIX = ("gqa", "mmb", "mme", "pope", "sqa", "textvqa")
"""Of the cumulative study and of the appendix; with VQAv2 they are the seven of the main tables."""


def retention(scores: Mapping[str, float | None], reference: Mapping[str, float | None]) -> float | None:
    """R = 100 / B * sum of score / reference over the B tasks that are reported; None where there are none.

    A task without a reference is no ratio, and a mean without it would be another quantity: None as well.

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
    """F1 of "yes" in percent over (answer, truth) of all splits together, which is not the mean over the splits.

    As lmms-eval counts: an answer that is neither yes nor no misses nothing and claims nothing.

    >>> import covist.reproduce
    >>> covist.reproduce.pope_f1([("yes", "yes"), ("no", "yes"), ("yes", "no"), ("no", "no")])
    50.0
    """
    pairs = list(answers)
    hits = pairs.count(("yes", "yes"))
    errors = pairs.count(("yes", "no")) + pairs.count(("no", "yes"))
    return 100 * 2 * hits / (2 * hits + errors) if hits else 0.0


def mme_total(perception: float, cognition: float) -> float:
    """MME-PC, the sum of both halves; MME-P is the first alone."""
    return perception + cognition
