"""Eqs. 2, 4, 5 and the appendix on coverage weights, anchors and reserve."""

import math

import numpy as np

from reference.evidence import coordinates, selectivity
from reference.ops import EPS, first_largest, half_up, mass_norm, ranking, unit


def affinity(keys, embeddings):
    n = len(keys)
    c, x = [unit(k) for k in keys], [unit(e) for e in embeddings]
    clip = lambda v: min(max(float(v), 0.0), 1.0)  # noqa: E731
    return np.array([[0.5 * clip(c[i] @ c[j]) + 0.5 * clip(x[i] @ x[j]) for j in range(n)] for i in range(n)])


def uniform_coefficient(count, concentration, reference, multiplier=1.0):
    if count <= 64:
        u = 0.40
    elif count <= 128:
        u = 0.40 + (0.30 - 0.40) * (count - 64) / 64
    elif count <= 192:
        u = 0.30 + (0.25 - 0.30) * (count - 128) / 64
    else:
        u = 0.25
    if reference is not None:
        u *= min(max(1 + (reference - concentration) / max(reference, EPS), 0.5), 1.5)
    return min(u * multiplier, 0.60)


def coverage_weights(e, u, beta=1.5):
    sharp = mass_norm([x**beta for x in e])
    return np.array([(1 - u) * x + u / len(e) for x in sharp])


def descriptors(keys, embeddings, views, in_time=False):
    """In a video, time has .05 of the .15 that the coordinates have together."""
    xy = coordinates(views) - 0.5
    places = math.sqrt(0.15) * xy
    if in_time:
        time = np.concatenate([[(f + 0.5) / len(views) - 0.5] * (r * c) for f, (r, c) in enumerate(views)])
        places = np.concatenate([math.sqrt(0.10) * xy, math.sqrt(0.05) * time[:, None]], axis=1)
    return np.array(
        [
            np.concatenate([math.sqrt(0.425) * unit(k), math.sqrt(0.425) * unit(e), p])
            for k, e, p in zip(keys, embeddings, places, strict=True)
        ]
    )


def regions(w, points, count=16, tolerance=1e-6):
    n = len(w)
    centres = [first_largest(w, range(n))]
    while len(centres) < min(count, n):
        gap = [min(np.linalg.norm(points[j] - points[c]) ** 2 for c in centres) for j in range(n)]
        centres.append(first_largest(gap, range(n), tolerance))
    return [
        first_largest([-(np.linalg.norm(points[j] - points[c]) ** 2) for c in centres], range(len(centres)), tolerance)
        for j in range(n)
    ]


def region_weights(w, assigned, uniform=0.1):
    active = sorted(set(assigned))
    mass = {g: math.fsum(w[j] for j in range(len(w)) if assigned[j] == g) for g in active}
    target = {g: (1 - uniform) * mass[g] + uniform / len(active) for g in active}
    return mass_norm([target[assigned[j]] * w[j] / mass[assigned[j]] for j in range(len(w))])


def anchors(pi, s, count):
    limit = min(24, count // 4)
    initial_size = min(max(2, count // 12), limit)
    kept, novel = [], 0
    for candidate in ranking(pi):
        if len(kept) >= limit or novel >= 3:
            break
        if any(s[candidate][k] >= 0.95 for k in kept):
            continue
        if len(kept) >= initial_size and 1 - max(s[candidate][k] for k in kept[:initial_size]) > 0.2:
            novel += 1
        kept.append(candidate)
    return kept


def protected(attention, anchor_list, count, concentration):
    size = math.floor((0.25 + 0.45 * math.sqrt(concentration)) * count)
    core = ranking(attention)[:size]
    together = core + [a for a in anchor_list if a not in core]
    return together[: max(0, count - max(2, count // 8))]


def objective(s, omega, chosen):
    return math.fsum(omega[j] * max(s[i][j] ** 2 for i in chosen) for j in range(len(omega)))


def greedy(s, omega, start, count, tolerance=1e-12):
    """The naive loop of Eq. 5, every gain from scratch."""
    n, chosen = len(omega), list(start)
    kernel = np.asarray(s, dtype=np.float64) ** 2
    while len(chosen) < count:
        covered = [max((kernel[i][j] for i in chosen), default=0.0) for j in range(n)]
        gain = [math.fsum(omega[j] * max(kernel[i][j] - covered[j], 0.0) for j in range(n)) for i in range(n)]
        chosen.append(first_largest(gain, [i for i in range(n) if i not in chosen], tolerance))
    return chosen


def reserve(s, chosen, count):
    n, chosen = len(s), list(chosen)
    for _ in range(count):
        gap = [1 - max((s[i][j] ** 2 for i in chosen), default=0.0) for j in range(n)]
        chosen.append(first_largest(gap, [j for j in range(n) if j not in chosen]))
    return chosen


def select(
    attention_smoothed,
    concentration,
    e,
    s,
    points,
    count,
    pi=None,
    anchors_allowed=False,
    reference=None,
    regions_count=16,
):
    """The initial stage from its evidence to its sorted set."""
    w = coverage_weights(e, uniform_coefficient(count, concentration, reference))
    omega = region_weights(w, regions(w, points, regions_count))
    found = anchors(pi, s, count) if anchors_allowed and selectivity(pi) >= 0.05 else []
    start = protected(attention_smoothed, found, count, concentration)
    chosen = greedy(s, omega, start, count - half_up(0.05 * count))
    return sorted(reserve(s, chosen, count - len(chosen))), found
