"""Literal versions of EADP, TRIM, ZOO-Prune, SCoRe, Cen-Prune and FSR, written after their descriptions."""

import math

import numpy as np

from reference.ops import entropy, first_largest, ranking, softmax, unit
from reference.selectors import cosines, max_coverage

TIE = 1e-6


def apart(features):
    """1 - cosine of all pairs; what only rounding tells apart is at no distance."""
    distance = 1 - cosines(features)
    return np.where(distance <= TIE, 0.0, distance)


def best(scores):
    """The lowest key whose score is the largest, up to rounding."""
    return first_largest(scores, scores, TIE * abs(max(scores.values())))


def farthest(chosen, distance, saliency, count):
    chosen = list(chosen)
    while len(chosen) < count:
        others = [i for i in range(len(distance)) if i not in chosen]
        chosen.append(best({i: saliency[i] * min(distance[i, j] for j in chosen) for i in others}))
    return chosen


def stretch(values, noise=TIE):
    low, high, size = min(values), max(values), max(abs(v) for v in values)
    if high - low <= noise * size:
        return [1.0] * len(values)
    return [0.0 if v - low <= TIE * size else (v - low) / (high - low) for v in values]


def score(hidden, attention, count, alpha=0.8):
    first = best(dict(enumerate(attention)))
    return sorted(farthest([first], apart(hidden), [a**alpha for a in attention], count))


def sensitivity(hidden, project, directions, step=0.01):
    """The mean central difference of each token, one projection at a time, min-max."""
    means = []
    for h in hidden:
        quotients = []
        for u in directions:
            difference = project(h + step * unit(u)) - project(h - step * unit(u))
            quotients.append(math.sqrt(math.fsum(difference**2)) / (2 * step))
        means.append(math.fsum(quotients) / len(quotients))
    return stretch(means, 1e-3)


def zoo_prune(embeddings, sensitive, count):
    first = best(dict(enumerate(sensitive)))
    return sorted(farthest([first], apart(embeddings), sensitive, count))


def likeness(features):
    s = cosines(features)
    return [math.fsum(s[i, j] for j in range(len(s)) if j != i) / (len(s) - 1) for i in range(len(s))]


def centred(features):
    """Centred features and g of LLaVA, from projected embeddings."""
    return features - np.mean(features, axis=0), stretch([-v for v in likeness(features)])


def centred_patches(patches):
    """The same of Qwen, from the patches [N, patches of a token, v]."""
    means = np.array([np.mean(own, axis=0) for own in patches])
    scaled = np.array([[value / np.std(means[:, d]) for d, value in enumerate(row)] for row in means])
    rare = [-v for v in likeness(scaled)]
    z = [(v - np.mean(rare)) / np.std(rare) for v in rare]
    return scaled - np.mean(scaled, axis=0), [1 / (1 + math.exp(-v)) for v in z]


def cen_prune_divprune(features, rarity, count):
    distance = apart(features)
    nearest = {i: min(distance[i, j] for j in range(len(distance)) if j != i) for i in range(len(distance))}
    return sorted(farthest([best(nearest)], distance, rarity, count))


def cen_prune_zoo_prune(features, rarity, sensitive, count):
    saliency = [g * s for g, s in zip(rarity, sensitive, strict=True)]
    return sorted(farthest([best(dict(enumerate(saliency)))], apart(features), saliency, count))


def trim(products, hidden, count):
    """Kept tokens from the dot products of patches and text, and the mean of all others."""
    score = softmax([-p for p in products])
    kept = ranking(score)[: count - 1]
    return kept, np.mean([h for i, h in enumerate(hidden) if i not in kept], axis=0)


def fsr(relevance, attention, embeddings, count, share=0.9):
    """Focus, and index -> (content, members) of the scanned tokens."""
    phi = [r**3 * a for r, a in zip(relevance, attention, strict=True)]
    focus, held = [], 0.0
    for i in ranking(phi):
        if len(focus) == count or (focus and held >= share * math.fsum(phi)):
            break
        focus.append(i)
        held += phi[i]
    chosen = farthest(focus, apart(embeddings), [1.0] * len(phi), count)
    scanned = chosen[len(focus) :]
    groups = {anchor: [anchor] for anchor in scanned}
    similarity = cosines(embeddings)
    nearest = {}
    for i in (i for i in range(len(phi)) if i not in chosen and scanned):
        anchor = max(scanned, key=lambda j, i=i: similarity[i, j])
        nearest[i] = (similarity[i, anchor], anchor)
    for i in sorted(nearest, key=lambda i: -nearest[i][0])[: len(scanned)]:
        groups[nearest[i][1]].append(i)
    merged = {
        anchor: (sum(phi[i] * embeddings[i] for i in own) / sum(phi[i] for i in own), len(own))
        for anchor, own in groups.items()
    }
    return focus, merged


def telling(negated):
    """Text tokens that point somewhere, best first, with their weights; from the negated cosines [N, L]."""
    entropies = [entropy(softmax(100 * column)) for column in negated.T]
    kept = ranking([-h for h in entropies])[: max(1, int(0.2 * len(entropies)))]
    return kept, softmax([-entropies[i] / 0.01 for i in kept])


def eadp_relevance(tokens, pooled, states, sign=-1):
    """The mean over segments: pooled [M, p], states [M, L, p]."""
    per_segment = []
    for t, own in zip(pooled, states, strict=True):
        towards = sign * np.array([[float(unit(v) @ unit(s)) for s in own] for v in tokens])
        kept, weights = telling(towards)
        dense = [math.fsum(w * towards[i, k] for k, w in zip(kept, weights, strict=True)) for i in range(len(tokens))]
        whole = [sign * float(unit(v) @ unit(t)) for v in tokens]
        per_segment.append([0.5 * g + 0.5 * d for g, d in zip(whole, dense, strict=True)])
    return np.mean(per_segment, axis=0)


def blurred(image):
    """3 x 3 Gaussian of sigma 1, reflected at borders; an axis of one cell is not blurred."""
    rows, columns = image.shape
    result = np.zeros_like(image)
    for r in range(rows):
        for c in range(columns):
            total = weight = 0.0
            for dr in (-1, 0, 1) if rows > 1 else (0,):
                for dc in (-1, 0, 1) if columns > 1 else (0,):
                    w = math.exp(-(dr * dr + dc * dc) / 2)
                    total += w * image[_mirror(r + dr, rows), _mirror(c + dc, columns)]
                    weight += w
            result[r, c] = total / weight
    return result


def _mirror(place, length):
    return -place if place < 0 else 2 * (length - 1) - place if place >= length else place


def eadp_demand(relevance, views, beta):
    low, high = min(relevance), max(relevance)
    values = [(v - low + 1e-6) / (high - low) for v in relevance]
    demand, start = [], 0
    for rows, columns in views:
        view = np.array(values[start : start + rows * columns]).reshape(rows, columns)
        demand += (blurred(view) ** beta).flatten().tolist()
        start += rows * columns
    return demand


def eadp(embeddings, demand, count):
    similarity = (cosines(embeddings) + 1) / 2
    return max_coverage(np.diag(demand) @ similarity, np.ones(len(demand)), count)
