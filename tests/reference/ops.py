import math

import numpy as np

EPS = 1e-8


def mass_norm(v):
    total = math.fsum(v)
    return np.array([x / total for x in v]) if total > 0 else np.full(len(v), 1 / len(v))


def min_max(v):
    low, high = min(v), max(v)
    return np.array([(x - low) / (high - low + EPS) for x in v])


def unit(v):
    v = np.asarray(v, dtype=np.float64)
    return v / (math.sqrt(math.fsum(v * v)) + EPS)


def entropy(p):
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def softmax(v):
    top = max(v)
    powers = [math.exp(x - top) for x in v]
    return np.array(powers) / math.fsum(powers)


def departure(p):
    return 0.0 if len(p) == 1 else 1 - entropy(p) / math.log(len(p))


def first_largest(values, candidates, tolerance=0.0):
    """The lowest candidate whose value is the largest."""
    best = max(values[i] for i in candidates)
    return min(i for i in candidates if values[i] >= best - tolerance)


def ranking(values):
    """Indices from the largest value to the smallest; equal values in index order."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def half_up(x):
    return math.floor(x + 0.5)
