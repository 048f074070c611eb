"""Scores, retention and their 95 % intervals.

Questions about one image are not independent, so images are drawn, with all their questions. Within a draw, every
quantity (of a method, of vanilla, of another method) is computed on the same images: all comparisons are paired.

Each end of an interval belongs to draws with one more image (`covist.eval.resampling`): the worst of the sample or, if
that is worse, a single lost answer where it weighs most; at the other end, the best or a single gain. Few images make
any bootstrap too short; the factor by which Student's t exceeds the normal distribution widens it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from typing import NamedTuple

import numpy as np

from covist.eval.resampling import Score, highest, lowest, resample

DRAWS = 2000
LEVEL = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True)
class Tally:
    """Sums of the answers' scores, and numbers of questions; both [images, families]."""

    right: np.ndarray
    asked: np.ndarray


class Estimate(NamedTuple):
    """A figure with its 95 % interval."""

    value: float
    interval: Interval


def family_scores(tally: Tally) -> np.ndarray:
    """Percent right per family, [families]; nan if a family has no question."""
    return 100.0 * _ratio(tally.right.sum(0), tally.asked.sum(0))


def accuracy(tally: Tally, seed: int = 0) -> Estimate:
    """Mean of the family scores, in percent."""
    known = tally.asked.sum(0) > 0
    rows = np.hstack([tally.right, tally.asked])
    return _estimate(rows, mean_ratio, _answers(known, 0, 1), _answers(known, 1, 1), seed)


def retention(tally: Tally, vanilla: Tally, seed: int = 0) -> Estimate:
    """R of the paper in percent: the mean over families of score / vanilla score.

    A family in which vanilla has no right answer has no ratio and is left out.
    """
    known = vanilla.right.sum(0) > 0
    if tally is vanilla:
        return _certain(100.0 if known.any() else nan)
    missed = known & (vanilla.asked.sum(0) > vanilla.right.sum(0))  # here compression can give more right answers
    rows = np.hstack([tally.right, vanilla.right])
    gained = np.vstack([_answers(known, 1, 1), _answers(missed, 1, 0)])
    return _estimate(rows, mean_ratio, _answers(known, 0, 1), gained, seed)


def difference(tally: Tally, against: Tally, vanilla: Tally, seed: int = 0) -> Estimate:
    """The retention of a run minus that of another, in percentage points."""
    if tally is against:
        return _certain(0.0)
    known, rows = vanilla.right.sum(0) > 0, np.hstack([tally.right, against.right, vanilla.right])
    return _estimate(rows, _gap_of_ratios, _answers(known, 0, 1, 1), _answers(known, 1, 0, 1), seed)


def contributions(tally: Tally, against: Tally, vanilla: Tally) -> np.ndarray:
    """What each image adds to the difference in retention, [images]; nan if vanilla has no right answer."""
    full = vanilla.right.sum(0)
    if not full.any():
        return np.full(len(full), nan)
    known = full > 0
    return 100.0 * ((tally.right - against.right)[:, known] / full[known]).mean(1)


def _certain(value: float) -> Estimate:
    """What holds by definition, on any images."""
    return Estimate(value, (value, value))


def _estimate(rows: np.ndarray, score: Score, lost: np.ndarray, gained: np.ndarray, seed: int) -> Estimate:
    """lost, gained: rows of a single answer that is lost or gained, for each family"""
    value = float(score(rows.sum(0)))
    if not len(lost):  # no family has a score
        return Estimate(value, (nan, nan))
    worst = lowest(rows, np.vstack([rows, lost]), score)
    best = highest(rows, np.vstack([rows, gained]), score)
    low, high = resample(rows, [(worst, score), (best, score)], draws=DRAWS, seed=seed)
    tail = _tail(len(rows))
    return Estimate(value, (float(np.quantile(low, tail)), float(np.quantile(high, 1 - tail))))


def _tail(images: int) -> float:
    """The share of the draws to cut off at each end: less than 2.5 % for few images."""
    from scipy.stats import norm, t

    freedom = max(1, images - 1)
    return float(norm.cdf(t.ppf((1 - LEVEL) / 2, freedom) * sqrt((images + 1) / freedom)))


def _answers(families: np.ndarray, *columns: float) -> np.ndarray:
    """A row for a single answer in each of some families: these values in its column of every part of a row."""
    return np.kron([columns], np.eye(len(families))[families])


def mean_ratio(sums: np.ndarray) -> np.ndarray:
    """The mean over families of one sum over another, in percent, [...]; sums are [..., 2 families]."""
    over, under = np.split(sums, 2, axis=-1)
    return 100.0 * _mean(_ratio(over, under))


def _gap_of_ratios(sums: np.ndarray) -> np.ndarray:
    over, against, under = np.split(sums, 3, axis=-1)
    return 100.0 * _mean(_ratio(over - against, under))


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Element-wise quotient, nan where the denominator is 0 or nan."""
    return np.divide(over, under, out=np.full(under.shape, np.nan), where=under > 0)


def _mean(scores: np.ndarray) -> np.ndarray:
    """Mean over the last axis, ignoring nan; nan if nothing is left."""
    known = ~np.isnan(scores)
    return _ratio(np.where(known, scores, 0.0).sum(-1), known.sum(-1).astype(float))
