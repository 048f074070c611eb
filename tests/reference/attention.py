"""Eqs. 9 and 10."""

import math

import numpy as np


def distance_factor(p_query, p_key, theta, axes=None):
    """D; positions are numbers, or one component per axis."""
    p_query, p_key = np.atleast_1d(p_query), np.atleast_1d(p_key)
    axes = [0] * len(theta) if axes is None else axes
    terms = [math.cos(abs(float(p_query[a]) - float(p_key[a])) * t) for t, a in zip(theta, axes, strict=True)]
    return math.fsum(terms) / len(theta)


def bias(gain, weight, p_query, p_key, theta, axes=None):
    return gain * math.log(weight * (2 - distance_factor(p_query, p_key, theta, axes)))


def energy(w_query, w_key):
    """E of one head from its projections [dh, d]."""
    half = len(w_query) // 2
    row = lambda w, r: float(np.sqrt((w[r] ** 2).sum() + (w[r + half] ** 2).sum()))  # noqa: E731
    return [row(w_query, r) * row(w_key, r) for r in range(half)]


def head_gains(w_queries, w_keys, theta, low=0.6, high=1.4):
    """Projections [layers][heads][dh, d]; grouped keys [layers][kv heads][dh, d]."""
    nu = []
    for layer_q, layer_k in zip(w_queries, w_keys, strict=True):
        group = len(layer_q) // len(layer_k)
        row = []
        for h, w_query in enumerate(layer_q):
            e = energy(w_query, layer_k[h // group])
            row.append(math.fsum(x * t for x, t in zip(e, theta, strict=True)) / math.fsum(e))
        nu.append(row)
    nu = np.array(nu)
    return low + (high - low) * (nu - nu.min()) / (nu.max() - nu.min() + 1e-8)
