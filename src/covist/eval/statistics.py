"""Scores, retention and bootstrap intervals.

Questions about one image are not independent, so the bootstrap draws images with replacement, and every quantity
of a draw (of the method, of vanilla, of another method) is computed on the same images: all comparisons are paired.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DRAWS = 2000
LEVEL = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True)
class Tally:
    """Right answers and questions, both [images, families]."""

    right: np.ndarray
    asked: np.ndarray


class Bootstrap:
    """A fixed set of draws over `images` images; draw 0 is the sample itself."""

    def __init__(self, images: int, seed: int, draws: int = DRAWS):
        rng = np.random.default_rng([seed, 7])
        drawn = rng.multinomial(images, np.full(images, 1 / images), size=draws)  # [draws, images]
        self.times = np.concatenate([np.ones((1, images), dtype=drawn.dtype), drawn])

    def family_scores(self, tally: Tally) -> np.ndarray:
        """Percent right per draw and family, [1 + draws, families]; nan where a draw asks nothing of a family."""
        return _ratio(100.0 * self.times @ tally.right, self.times @ tally.asked)

    def accuracy(self, tally: Tally) -> np.ndarray:
        """Mean of the family scores, [1 + draws]."""
        return _mean(self.family_scores(tally))

    def retention(self, tally: Tally, vanilla: Tally) -> np.ndarray:
        """R of the paper in percent, [1 + draws]: the mean over families of score / vanilla score.

        A family in which vanilla gets nothing right has no ratio and is left out.
        """
        return 100.0 * _mean(_ratio(self.family_scores(tally), self.family_scores(vanilla)))


def estimate(values: np.ndarray) -> tuple[float, Interval]:
    """Point estimate and percentile interval of per-draw values [1 + draws]."""
    drawn = values[1:][~np.isnan(values[1:])]
    if not len(drawn):
        return float(values[0]), (float("nan"), float("nan"))
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(values[0]), (float(low), float(high))


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Element-wise quotient, nan where the denominator is 0 or nan."""
    return np.divide(over, under, out=np.full(under.shape, np.nan), where=under > 0)


def _mean(scores: np.ndarray) -> np.ndarray:
    """Mean over the last axis of what is not nan; nan where nothing is left."""
    known = ~np.isnan(scores)
    return _ratio(np.where(known, scores, 0.0).sum(-1), known.sum(-1).astype(float))
