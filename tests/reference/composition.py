"""Eqs. 6-8, 15, 17 and 18."""

import math

import numpy as np

from reference.ops import entropy, first_largest, min_max, softmax


def confidence(row, xy_removed, xy_kept):
    t = [
        s + 0.45 * math.exp(-float(((xy_removed - p) ** 2).sum()) / (2 * 0.2**2))
        for s, p in zip(row, xy_kept, strict=True)
    ]
    count = len(t)
    k_f = min(count, max(2, math.ceil(count / 10)))
    concentration = 1.0
    if k_f > 1:
        varpi = softmax([value / 0.07 for value in sorted(t, reverse=True)[:k_f]])
        concentration = min(max(1 - entropy(varpi) / math.log(k_f), 0.0), 1.0)
    return 1 / (1 + math.exp(-(max(t) - 0.4) / 0.1)) * (1 + concentration) / 2


def compose(features, s, m, xy, kept, e, gamma=2.0, m_max=8.0, alpha=0.15, tau=0.75, ties=None):
    """-> (features [K, d], weights [K], withheld, representative of every old token as a place in `kept`).

    ties: places in `kept` that decide between representatives which are equally similar up to rounding
    """
    n = len(m)
    removed = [j for j in range(n) if j not in kept]
    a = {j: first_largest([s[j][i] for i in kept], range(len(kept))) for j in removed}
    for j in removed if ties is not None else ():
        if s[j][kept[ties[j]]] >= s[j][kept[a[j]]] - 1e-6:
            a[j] = ties[j]
    b = [math.fsum(m[j] * s[j][i] ** gamma for j in removed if a[j] == k) for k, i in enumerate(kept)]
    placed = math.fsum(e[i] * b[k] for k, i in enumerate(kept))
    scale = math.fsum(m[j] * e[j] for j in removed) / placed if placed > 1e-8 else 0.0
    proposed = [m[i] + scale * b[k] for k, i in enumerate(kept)]
    withheld = math.fsum(e[i] * max(proposed[k] - m_max, 0.0) for k, i in enumerate(kept))
    weights = np.array([min(max(value, 1.0), m_max) for value in proposed])
    assignment = [kept.index(j) if j in kept else a[j] for j in range(n)]
    return content(features, s, xy, kept, e, a, alpha, tau), weights, withheld, assignment


def content(features, s, xy, kept, e, a, alpha, tau):
    importance = min_max(e) + 1e-6
    q = {j: confidence([s[j][i] for i in kept], xy[j], xy[kept]) for j in a}
    out = []
    for k, i in enumerate(kept):
        h = features[i]
        giving = [j for j in a if a[j] == k and q[j] >= tau]
        if giving:
            total = math.fsum(importance[j] * q[j] for j in giving)
            moved = h + alpha * sum(importance[j] * q[j] * features[j] for j in giving) / total
            if np.linalg.norm(moved) > 0:
                h = np.linalg.norm(h) / np.linalg.norm(moved) * moved
        out.append(h)
    return np.array(out)
