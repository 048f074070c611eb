"""Literal versions of the selectors that act before the decoder, written after the descriptions of the algorithms."""

import math

import numpy as np

from reference.ops import first_largest, half_up, ranking, softmax, unit


def cosines(features):
    rows = [unit(row) for row in features]
    return np.array([[float(a @ b) for b in rows] for a in rows])


def class_attention(query, class_key, keys, heads):
    """Head-mean attention of the class token to the patches, from a softmax over the patches and itself."""
    width = len(query) // heads
    rows = []
    for own in (slice(head * width, (head + 1) * width) for head in range(heads)):
        rows.append(softmax(np.array([float(query[own] @ key[own]) / math.sqrt(width) for key in [class_key, *keys]])))
    return np.mean(rows, axis=0)[1:]


def fastervlm(attention, count):
    return sorted(ranking(attention)[:count])


def vispruner(attention, hidden, count, important=0.5):
    order = ranking(attention)
    head = int(count * important)
    target = count - head
    similarity = cosines(hidden)
    rest = order[head:]
    while len(rest) > target:
        deleted = min(8, len(rest) - target)
        even, odd = rest[::2], rest[1::2]
        closest = {a: max(similarity[a, b] for b in odd) for a in even}
        by_similarity = sorted(even, key=lambda a: -closest[a])
        rest = by_similarity[deleted:] + odd
    return sorted(order[:head] + rest)


def divprune(embeddings, count):
    distance = 1 - cosines(embeddings)
    tokens = range(len(distance))
    second = [sorted(distance[:, i])[1] for i in tokens]
    chosen = [first_largest(second, tokens, 1e-6)]
    while len(chosen) < count:
        nearest = {i: min(distance[i, j] for j in chosen) for i in tokens if i not in chosen}
        chosen.append(first_largest(nearest, nearest, 1e-6))
    return sorted(chosen)


def cdpruner(embeddings, relevance, count):
    """Greedy maximisation of the determinant itself."""
    kernel = np.diag(relevance) @ cosines(embeddings) @ np.diag(relevance)
    chosen = []
    for _ in range(count):
        gain = {}
        for i in range(len(kernel)):
            if i not in chosen:
                subset = [*chosen, i]
                gain[i] = np.linalg.slogdet(kernel[np.ix_(subset, subset)])[1]
        chosen.append(first_largest(gain, gain, 1e-6))
    return sorted(chosen)


def published_relevance(patches, segments):
    """CDPruner's r from patches and the pooled text segments in CLIP's space: the negated mean similarity, min-max."""
    negated = [-float(np.mean([unit(patch) @ unit(text) for text in segments])) for patch in patches]
    low, high = min(negated), max(negated)
    return np.array([(value - low + 1e-6) / (high - low) for value in negated])


def max_coverage(rows, priority, count):
    covered = np.zeros(len(rows))
    chosen = []
    for _ in range(count):
        gain = {
            i: sum(max(0.0, rows[j, i] - covered[j]) for j in range(len(rows))) * priority[i]
            for i in range(rows.shape[1])
            if i not in chosen
        }
        best = first_largest(gain, gain, 1e-6 * max(gain.values()))
        chosen.append(best)
        covered = np.maximum(covered, rows[:, best])
    return sorted(chosen)


def scope(hidden, attention, count, alpha=1.0):
    return max_coverage(cosines(hidden), [a**alpha for a in attention], count)


def mmtok(words, embeddings, hidden, count):
    x = [unit(row) for row in embeddings]
    textual = [softmax([float(unit(z) @ row) / 0.02 for row in x]) / len(words) for z in words]
    visual = [softmax(row / 0.2) / len(hidden) for row in cosines(hidden)]
    return max_coverage(np.array([*textual, *(0.5 * row for row in visual)]), np.ones(len(hidden)), count)


def holov(attention, embeddings, count, chunks=16):
    chunks = min(chunks, len(attention))
    longer = len(attention) % chunks
    sizes = [len(attention) // chunks + (chunk < longer) for chunk in range(chunks)]
    members, start = [], 0
    for size in sizes:
        members.append(list(range(start, start + size)))
        start += size
    scores = [_chunk_score([attention[i] for i in own], [embeddings[i] for i in own]) for own in members]
    places = [math.floor(count * score / sum(scores)) for score in scores]
    order = ranking(scores)
    for chunk in order[: count - sum(places)]:
        places[chunk] += 1
    places = [min(own, size) for own, size in zip(places, sizes, strict=True)]
    while sum(places) < count:
        for chunk in order:
            if places[chunk] < sizes[chunk] and sum(places) < count:
                places[chunk] += 1
    kept = []
    for own, quota in zip(members, places, strict=True):
        kept += [own[i] for i in ranking([attention[i] for i in own])[:quota]]
    return sorted(kept)


def _chunk_score(attention, embeddings):
    n = len(attention)
    similarity = cosines(embeddings)
    np.fill_diagonal(similarity, 0)
    mean = [sum(row) / max(1, n - 1) for row in similarity]
    variety = [sum((similarity[i, j] - mean[i]) ** 2 for j in range(n)) / max(1, n - 1) for i in range(n)]
    scaled = [1000 * a for a in attention]
    kappa = np.mean(scaled) / (np.mean(variety) + 1e-6)
    return float(np.mean([s + 0.09 * v * kappa for s, v in zip(scaled, variety, strict=True)]))


def anchorprune(relevance, patches, attention, hidden, count):
    order = ranking(relevance)
    limit = max(1, int(0.5 * count))
    first = min(max(1, half_up(5 * count / 32)), limit)
    patch_similarity = cosines(patches)
    chosen, novel = order[:first], 0
    for candidate in order[first:limit]:
        if novel == 3:
            break
        novel += min(1 - patch_similarity[candidate, j] for j in order[:first]) > 0.2
        chosen.append(candidate)
    distance = 1 - cosines(hidden)
    saliency = np.array(attention) / sum(attention)
    while len(chosen) < count:
        gain = {i: saliency[i] * min(distance[i, j] for j in chosen) for i in range(len(distance)) if i not in chosen}
        chosen.append(first_largest(gain, gain, 1e-12))
    return sorted(chosen)


def g_prune_scores(embeddings):
    """The mass of a five-step walk over links of cosine 0.5 or more, by the number of a token's links."""
    similarity = cosines(embeddings)
    steps = []
    for row in similarity:
        logits = [value / 0.03 if value >= 0.5 else -5000.0 for value in row]
        steps.append(softmax(logits))
    mass = [math.sqrt(math.fsum(row * row)) for row in embeddings]
    for _ in range(5):
        mass = [math.fsum(mass[i] * steps[i][j] for i in range(len(mass))) for j in range(len(mass))]
    return [mass[j] / sum(share > 0 for share in steps[j]) for j in range(len(mass))]
