"""When a difference between two methods is clear: a sign-flip test, and the correction for many comparisons.

If two methods do equally well, each image could as well have been answered the other way round: their labels can be
exchanged, and what the image adds to the difference changes its sign. The p-value is the share of all exchanges that
give a difference as large as the real one. It is exact for any number of images, as long as images are independent of
each other and neither method is favoured on any; nothing is assumed about the distribution. Methods that are equal on
average, but of which one loses rarely and much, the other often and little, make it an approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

import numpy as np

FEWEST = 30
"""With fewer images no difference is called clear."""
EXCHANGES = 9999
"""Of more than so many exchanges, so many are drawn at random: enough for Holm's correction of 250 comparisons."""


def sign_flip(contributions: np.ndarray, exchanges: int = EXCHANGES) -> float:
    """Two-sided p-value of no difference, from what each image adds to it; nan if that is not known.

    exchanges: how many are drawn, if there are more; they are counted, so that p holds with any number

    >>> import numpy as np
    >>> sign_flip(np.array([1.0, 2.0, 1.5, 0.0, 3.0]))  # four images differ: 2 of 16 exchanges give as much
    0.125
    """
    from scipy.stats import permutation_test

    if np.isnan(contributions).any():
        return nan
    moved = contributions[contributions != 0]  # the others have no sign to change
    if len(moved) < 2:
        return 1.0
    found = permutation_test((moved,), np.sum, permutation_type="samples", n_resamples=exchanges, axis=0, rng=0)
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values after Holm's step-down correction, which controls the family-wise error; those that are nan stay so.

    The smallest is multiplied by their number, the next by one less, and so on; they never decrease and are at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, worst = [nan] * len(p_values), 0.0
    known = [place for place, p in enumerate(p_values) if not isnan(p)]
    for done, place in enumerate(sorted(known, key=lambda place: p_values[place])):
        worst = max(worst, min(1.0, (len(known) - done) * p_values[place]))
        adjusted[place] = worst
    return adjusted
