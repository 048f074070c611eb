"""CoViST-Max word by word: plain loops in float64."""

import math

import numpy as np

from reference.ops import unit


def affinities(hidden):
    """exp(-2 d / D), d the cosine distance, D the mean distance to the farthest token."""
    rows = [unit(row) for row in np.asarray(hidden, dtype=np.float64)]
    distance = [[1 - float(a @ b) for b in rows] for a in rows]
    farthest = sum(map(max, distance)) / len(rows)
    return [[math.exp(-2 * d / (farthest + 1e-4)) for d in row] for row in distance]


def weights(s):
    """One over the sum of the kernel, with mass one."""
    inverse = [1 / sum(value**2 for value in row) for row in s]
    return [value / sum(inverse) for value in inverse]


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
