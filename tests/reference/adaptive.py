"""The order that tells how many tokens an image needs, and the count that it leads to, step by step."""

import math

from reference import coverage
from reference.ops import first_largest, half_up, ranking


def share(s, omega, chosen):
    """Coverage of some tokens over the coverage of all."""
    return coverage.objective(s, omega, chosen) / coverage.objective(s, omega, range(len(omega)))


def order(attention, concentration, s, omega, anchors, count):
    """The first `count` tokens: places of core, anchors and reserve as they fall due, coverage for the others."""
    n, chosen, reserved = len(omega), [], 0
    ranked = ranking(attention)
    for length in range(1, count + 1):
        size = math.floor((0.25 + 0.45 * math.sqrt(concentration)) * length)
        due = anchors[: min(24, length // 4)]
        protected = ranked[:size] + [a for a in due if a not in ranked[:size]]
        waiting = [t for t in protected[: max(0, length - max(2, length // 8))] if t not in chosen]
        free = [t for t in range(n) if t not in chosen]
        if waiting:
            chosen.append(waiting[0])
        elif reserved < half_up(0.05 * length):
            gap = [1 - max((s[i][j] ** 2 for i in chosen), default=0.0) for j in range(n)]
            chosen.append(first_largest(gap, free))
            reserved += 1
        else:
            chosen = coverage.greedy(s, omega, chosen, length)
    return chosen


def smallest_count(curve, selections, level, least, most):
    """From coverage by length and by count of the selection: the count of the first selection that reaches the level,
    from where the order does."""
    start = next((k for k in range(least, most + 1) if curve[k] >= level), most)
    return next((k for k in range(start, most + 1) if selections[k] >= level), most)
