"""CoViST-Max word by word: plain loops in float64."""

import math

import numpy as np

from reference.ops import unit


def affinities(hidden, frames=1):
    """exp(-2 (d / D + |t - t'|)): d the cosine distance, D the mean distance to the farthest token, t the time."""
    rows = [unit(row) for row in np.asarray(hidden, dtype=np.float64)]
    distance = [[1 - float(a @ b) for b in rows] for a in rows]
    farthest = sum(map(max, distance)) / len(rows)
    times = [i * frames // len(rows) / frames for i in range(len(rows))]
    return [
        [math.exp(-2 * (d / (farthest + 1e-4) + abs(t - other))) for d, other in zip(row, times, strict=True)]
        for t, row in zip(times, distance, strict=True)
    ]


def weights(s, frames=1):
    """One over the sum of the kernel, with mass one; in a video times what a frame beside does not repeat."""
    raw = [novelty(s, j, len(s) // frames) / sum(value**2 for value in row) for j, row in enumerate(s)]
    return [value / sum(raw) for value in raw]


def novelty(s, j, places):
    """One minus the affinity to the same place one frame before or after, the smaller one; 1 at the ends."""
    beside = [s[j][i] if 0 <= i < len(s) else 0 for i in (j - places, j + places)]
    return 1 - min(beside)


def coverage(s, omega, kept):
    """Eq. 5."""
    return sum(omega[j] * max(s[i][j] ** 2 for i in kept) for j in range(len(s)))


def order(s, omega, count):
    """Tokens as the greedy search takes them: the one that adds most, the first of equals."""
    kept = []
    for _ in range(count):
        left = [i for i in range(len(s)) if i not in kept]
        kept.append(max(left, key=lambda i: (round(coverage(s, omega, [*kept, i]), 11), -i)))
    return kept


def groups(s, kept):
    """Representative -> the tokens that it stands for."""
    found = {i: [i] for i in kept}
    for j in range(len(s)):
        if j not in found:
            found[max(sorted(kept), key=lambda i: s[i][j])].append(j)
    return found


def content(features, members):
    """The mean of a group."""
    rows = np.asarray(features, dtype=np.float64)
    return sum(rows[j] for j in members) / len(members)
