"""Scores, retention, bootstrap intervals, and the correction for multiple comparisons.

Questions about one image are not independent, so the bootstrap draws images with replacement. Within a draw, every
quantity (of a method, of vanilla, of another method) is computed on the same images: all comparisons are paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
LEVEL = 0.95
FEWEST = 6
"""With fewer images no difference is clear: even one sign in all of five is chance in 6 % of cases."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Tally:
    """Sums of the answers' scores, and numbers of questions; both [images, families]."""

    right: np.ndarray
    asked: np.ndarray


class Bootstrap:
    """A fixed set of draws over `images` images; draw 0 is the sample itself."""

    def __init__(self, images: int, seed: int, draws: int = DRAWS):
        rng = np.random.default_rng([seed, 7])
        drawn = rng.multinomial(images, np.full(images, 1 / images), size=draws)  # [draws, images]
        self.times = np.concatenate([np.ones((1, images), dtype=drawn.dtype), drawn])

    def family_scores(self, tally: Tally) -> np.ndarray:
        """Percent right per draw and family, [1 + draws, families]; nan if a draw has no question of a family."""
        return _ratio(100.0 * self.times @ tally.right, self.times @ tally.asked)

    def accuracy(self, tally: Tally) -> np.ndarray:
        """Mean of the family scores, [1 + draws]."""
        return _mean(self.family_scores(tally))

    def retention(self, tally: Tally, vanilla: Tally) -> np.ndarray:
        """R of the paper in percent, [1 + draws]: the mean over families of score / vanilla score.

        A family in which vanilla has no right answer has no ratio and is left out.
        """
        return 100.0 * _mean(_ratio(self.family_scores(tally), self.family_scores(vanilla)))


def estimate(values: np.ndarray) -> tuple[float, Interval]:
    """Point estimate and percentile interval of per-draw values [1 + draws]."""
    drawn = values[1:][~np.isnan(values[1:])]
    if not len(drawn):
        return float(values[0]), (float("nan"), float("nan"))
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(values[0]), (float(low), float(high))


def p_value(values: np.ndarray) -> float:
    """Two-sided p-value of per-draw differences [1 + draws] from zero: the estimate over the draws' deviation.

    It uses the normal distribution, because counting draws beyond zero cannot resolve the very small values that a
    correction for multiple comparisons needs.
    """
    drawn = values[1:][~np.isnan(values[1:])]
    if not len(drawn) or math.isnan(values[0]):
        return math.nan
    error = float(np.std(drawn))
    if error == 0:
        return float(values[0] == 0)
    return math.erfc(abs(float(values[0])) / error / math.sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values after Holm's step-down correction, which controls the family-wise error.

    The smallest is multiplied by their number, the next by one less, and so on; they never decrease and are at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, worst = [0.0] * len(p_values), 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        worst = max(worst, min(1.0, (len(p_values) - done) * p_values[place]))
        adjusted[place] = worst
    return adjusted


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Element-wise quotient, nan where the denominator is 0 or nan."""
    return np.divide(over, under, out=np.full(under.shape, np.nan), where=under > 0)


def _mean(scores: np.ndarray) -> np.ndarray:
    """Mean over the last axis, ignoring nan; nan if nothing is left."""
    known = ~np.isnan(scores)
    return _ratio(np.where(known, scores, 0.0).sum(-1), known.sum(-1).astype(float))
