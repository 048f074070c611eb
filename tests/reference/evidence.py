"""Eqs. 3 and 16 and the appendix on visual and instruction evidence."""

import math

import numpy as np

from reference.ops import EPS, departure, entropy, mass_norm, min_max, softmax, unit


def mix_heads(attention):
    heads = [mass_norm(head) for head in attention]
    weights = mass_norm([departure(head) for head in heads])
    return sum(w * head for w, head in zip(weights, heads, strict=True))


def cells(views):
    """(view, row, column) of every token in order."""
    return [(v, r, c) for v, (rows, columns) in enumerate(views) for r in range(rows) for c in range(columns)]


def coordinates(views):
    return np.array([((c + 0.5) / views[v][1], (r + 0.5) / views[v][0]) for v, r, c in cells(views)])


def binomial(values, views):
    place = cells(views)
    index = {cell: i for i, cell in enumerate(place)}
    out = []
    for v, r, c in place:
        total = weight = 0.0
        for dr in (-1, 0, 1):
            for dc in (-1, 0, 1):
                neighbour = index.get((v, r + dr, c + dc))
                if neighbour is not None:
                    k = (2 - abs(dr)) * (2 - abs(dc))
                    total, weight = total + k * values[neighbour], weight + k
        out.append(total / weight)
    return np.array(out)


def adjacent_similarity(x, views):
    place = cells(views)
    index = {cell: i for i, cell in enumerate(place)}
    out = []
    for v, r, c in place:
        around = [index.get((v, r + dr, c + dc)) for dr, dc in ((0, 1), (0, -1), (1, 0), (-1, 0))]
        similar = [float(x[index[v, r, c]] @ x[j]) for j in around if j is not None]
        out.append(sum(similar) / len(similar) if similar else 1.0)
    return np.array(out)


def percentile(values, fraction):
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def smooth_attention(attention, keys, views, neighbours=None):
    """`neighbours` names the linked tokens where equal similarities leave the choice open."""
    a = mass_norm(attention)
    limit = percentile(a, 0.995)
    a = np.array([min(x, limit) for x in a])
    c = [unit(k) for k in keys]
    n = len(a)
    for _ in range(2):
        previous = a.copy()
        for i in range(n):
            similarity = [float(c[i] @ c[j]) for j in range(n)]
            near = sorted((j for j in range(n) if j != i), key=lambda j: (-similarity[j], j))[:8]
            near = near if neighbours is None else list(neighbours[i])
            if near:
                p = softmax([similarity[j] / 0.1 for j in near])
                a[i] = 0.65 * previous[i] + 0.35 * sum(p[k] * previous[j] for k, j in enumerate(near))
    return mass_norm(binomial(a, views))


def distinctiveness(embeddings, views):
    x = np.array([unit(e) for e in embeddings])
    mean = unit(x.sum(0))
    far = min_max([1 - float(row @ mean) for row in x])
    contrast = min_max(1 - adjacent_similarity(x, views))
    return 0.45 * far + 0.55 * contrast


def base_evidence(smoothed, distinct):
    a, s = min_max(smoothed), min_max(distinct)
    rho = np.var(a) / (np.var(a) + np.var(s) + EPS)
    return mass_norm(rho * a + (1 - rho) * s)


def instruction_distribution(text, patches, sign=-1):
    u = [[float(unit(t) @ unit(p)) for p in patches] for t in text]
    entropies = [entropy(softmax([value / 0.01 for value in row])) for row in u]
    kept = sorted(range(len(text)), key=lambda t: (entropies[t], t))[: math.ceil(len(text) / 2)]
    beta = softmax([-entropies[t] / 0.01 for t in kept])
    n = len(patches)
    dense = [sign * sum(b * u[t][j] for b, t in zip(beta, kept, strict=True)) for j in range(n)]
    end = [sign * u[-1][j] for j in range(n)]
    return mass_norm(0.5 * min_max(dense) + 0.5 * min_max(end))


def first_layer_distribution(queries, keys):
    heads, group = len(queries), len(queries) // len(keys)
    width = queries.shape[-1]
    rows = [
        softmax([float(q @ k) / math.sqrt(width) for k in keys[h // group]]) for h in range(heads) for q in queries[h]
    ]
    return sum(rows) / len(rows)


def selectivity(pi):
    return 0.5 * math.fsum(abs(p - 1 / len(pi)) for p in pi)


def mix_evidence(b, pi, max_weight, scale=0.10):
    residual = np.maximum(np.asarray(pi) - b, 0)
    weight = max_weight * min(selectivity(pi) / scale, 1) if residual.sum() > 0 else 0.0
    return mass_norm((1 - weight) * b + weight * mass_norm(residual))
