"""The Bayesian bootstrap with one more image: a score on the samples that might have been drawn.

A draw gives every image a random weight; exponential ones, so that their shares follow Dirichlet's distribution. It can
only show what the sample holds: a hundred answers without a loss would say that none is ever lost. So every draw has
one more image, with a random weight like the others, which is as bad as can be feared (or, for the other end, as good
as can be hoped).

With one question per image, the ends are those of Clopper and Pearson, which are exact. The step from counts to sums in
which some losses cost more than others is that of Fay and Feuer (1997): the added loss is the dearest one. For any
values that are bounded on one side, it is Gaffke's bound (2005), for which no violation is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

CELLS = 2**22  # weights in memory at a time

Score = Callable[[np.ndarray], np.ndarray]
"""From sums over images, [..., columns], to scores, [...]."""


def resample(
    rows: np.ndarray, ends: Sequence[tuple[np.ndarray, Score]], *, draws: int, seed: int = 0
) -> list[np.ndarray]:
    """For each end, its score in every draw, [draws]; an end is one more row and a score.

    rows: what each image adds to the sums, [images, columns]
    """
    # Equal rows share one weight: the sum of exponential ones has a gamma distribution.
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    rng, step = np.random.default_rng([seed, 7]), max(1, CELLS // len(distinct))
    parts: list[list[np.ndarray]] = [[] for _ in ends]
    for start in range(0, draws, step):
        size = min(step, draws - start)
        sums = rng.standard_gamma(counts, (size, len(distinct))) @ distinct
        weight = rng.standard_exponential((size, 1))
        for found, (more, score) in zip(parts, ends, strict=True):
            found.append(score(sums + weight * more))
    return [np.concatenate(found) for found in parts]


def lowest(rows: np.ndarray, candidates: np.ndarray, score: Score) -> np.ndarray:
    """The candidate that lowers the score most if it is added to the rows."""
    return candidates[int(np.argmin(score(rows.sum(0) + candidates)))]


def highest(rows: np.ndarray, candidates: np.ndarray, score: Score) -> np.ndarray:
    """The candidate that raises the score most if it is added to the rows."""
    return candidates[int(np.argmax(score(rows.sum(0) + candidates)))]
