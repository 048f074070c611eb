"""Literal versions of the methods that merge tokens: index -> new content, before or after the projector."""

import numpy as np

from reference.ops import half_up, ranking, unit
from reference.selectors import cosines


def visionzip(attention, head_keys, hidden, class_features, count):
    """(dominant indices, {target: encoder features}, class features); class_features None = no class token."""
    dominant_places = half_up(count * 27 / 32)
    contextual = count - dominant_places
    dominant = ranking(attention)[: dominant_places - (class_features is not None)]
    rest = [i for i in range(len(attention)) if i not in dominant]
    step = max(1, len(rest) // contextual)
    targets = rest[::step][:contextual]
    metric = [unit(np.mean(heads, axis=0)) for heads in head_keys]
    members = {target: [] for target in targets}
    for j in rest:
        if j not in targets:
            closest = max(targets, key=lambda t: float(metric[j] @ metric[t]))
            members[closest].append(hidden[j])
    merged = {t: hidden[t] + np.mean(own, axis=0) if own else hidden[t] for t, own in members.items()}
    return sorted(dominant), merged


def prumerge(attention, keys, hidden, chosen):
    """({chosen: encoder features}, features of the extra token)."""
    similarity = cosines(keys)
    merged = {}
    for i in chosen:
        others = sorted((j for j in range(len(keys)) if j != i), key=lambda j: -similarity[i, j])[:32]
        merged[i] = hidden[i] + sum(attention[j] * hidden[j] for j in others)
    extra = sum(attention[j] * hidden[j] for j in range(len(keys)) if j not in chosen)
    return merged, extra


def tome(features, count, rounds=24):
    """{index: (content, size)}"""
    tokens = [(i, row.astype(np.float64), 1) for i, row in enumerate(features)]
    total, done = len(tokens) - count, 0
    while len(tokens) > count:
        constant = total // rounds + (done < total % rounds or done >= rounds and total % rounds > 0)
        tokens = _tome_round(tokens, min(constant, len(tokens) - count, len(tokens) // 2))
        done += 1
    return {i: (row, size) for i, row, size in tokens}


def _tome_round(tokens, merges):
    """Unmerged even tokens by falling similarity, then the odd ones."""
    even, odd = tokens[::2], tokens[1::2]
    edges = []
    for place, (_, row, _) in enumerate(even):
        scores = [float(unit(row) @ unit(other)) for _, other, _ in odd]
        edges.append((max(scores), place, int(np.argmax(scores))))
    edges.sort(key=lambda edge: (-edge[0], edge[1]))
    sums = [(i, row * size, size) for i, row, size in odd]
    for _, place, target in edges[:merges]:
        index, total, size = sums[target]
        sums[target] = (index, total + even[place][1] * even[place][2], size + even[place][2])
    return [even[place] for _, place, _ in edges[merges:]] + [(i, total / size, size) for i, total, size in sums]


def restore(embeddings, base, count, denser=False):
    """{index of the lower median: (content, size)} of the merged half; `base` are the indices the selector kept."""
    rest = [i for i in range(len(embeddings)) if i not in base]
    similarity = cosines([embeddings[i] for i in rest])
    density = similarity.sum(1)
    scores = []
    for i in range(len(rest)):
        others = [j for j in range(len(rest)) if (density[j] > density[i] if denser else density[j] < density[i])]
        scores.append(density[i] * (1 - max((similarity[i, j] for j in others), default=0.0)))
    anchors = ranking(scores)[: count - len(base)]
    members = {anchor: [anchor] for anchor in anchors}
    for i in range(len(rest)):
        if i not in anchors:
            members[max(anchors, key=lambda a: similarity[i, a])].append(i)
    merged = {}
    for own in members.values():
        places = sorted(rest[i] for i in own)
        merged[places[(len(places) - 1) // 2]] = (np.mean([embeddings[i] for i in places], axis=0), len(places))
    return merged


def vscan(shallow, deep, embeddings, rows, columns, count):
    """{kept index: (mean, members)}; windows of a 4 x 4 division take turns."""
    windows = {}
    for i in ranking(shallow):
        y, x = (i // columns + 0.5) / rows, (i % columns + 0.5) / columns
        windows.setdefault((int(4 * y), int(4 * x)), []).append(i)
    local, turn = [], 0
    while len(local) < count // 2:
        candidates = [own[turn] for own in windows.values() if len(own) > turn]
        local += sorted(candidates, key=lambda i: -shallow[i])[: count // 2 - len(local)]
        turn += 1
    rest = [i for i in ranking(deep) if i not in local]
    kept = sorted(local + rest[: count - len(local)])
    similarity = cosines(embeddings)
    members = {i: [i] for i in kept}
    for j in range(len(embeddings)):
        if j not in members:
            members[max(kept, key=lambda i: similarity[j, i])].append(j)
    return {i: (np.mean([embeddings[j] for j in own], axis=0), len(own)) for i, own in members.items()}
